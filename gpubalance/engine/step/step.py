"""The step, what all replicas do with a dispatched batch, each in one graph: train, test, predict.

Every replica runs the model's own `train_step` on its share; the results sum to those of one
device: see weighing.py. What is measured and what is trained is this step. Each function takes the
dispatched values, which are on the devices, and on the host each replica's micro-batch. Nothing
comes to a device or leaves it in the middle of a step, as whoever needs it would wait for all that
is queued there: the logs stay on the first one until somebody reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine.keras_patches import taking_keys_at_once
from gpubalance.engine.replicas import Replicas
from gpubalance.engine.step.compiled import refuse_what_cannot_compile
from gpubalance.engine.step.gradients import (
    Rows,
    applying_sums,
    gradients_of,
    inlined,
    over_micro_batches,
    refuse_what_cannot_accumulate,
    taking_gradients,
)
from gpubalance.engine.step.logs import LaterResults, Logs
from gpubalance.engine.step.part import PartReplacements, part_of
from gpubalance.engine.step.points import FINISHED, SUMMED, Points, number_of_replica
from gpubalance.engine.step.state import State, counted
from gpubalance.engine.step.sums import (
    batch_of,
    loss_scale,
    over_replicas,
    parted,
    received,
    sent,
    squared_norm,
    together,
    with_norms,
)
from gpubalance.engine.step.weighing import weighing
from gpubalance.results.combine_rules import CombineRules


@dataclass(frozen=True)
class StepKind:
    """A kind of training step."""

    replicated: bool = False  # each replica has all of the batch: see `Part`
    micro: bool = False  # batches are taken in micro-batches
    stamped: bool = False
    # The stamps have two columns more, Σ‖h‖²/b over a replica's parts and ‖g‖²: see
    # `planning.noise.Norms`.
    noisy: bool = False
    xla: bool = False
    # One device runs a `train_step` that a split can't train, whatever it does.
    unmodified: bool = False
    pack_bytes: int = 0  # of gradients that are summed in one all-reduce, all for 0


def training(
    model: Any,
    replicas: Replicas,
    combine_rules: CombineRules,
    kind: StepKind,
    later: LaterResults,
) -> Callable[..., Any]:
    """A step that returns its logs, as `Logs.of_all` does, and its stamps if it is stamped.

    Stamps, float64 [replicas, 4], are the seconds at which a replica began to compute, had its own
    gradients, had their sum over all replicas, and had updated its weights.
    """
    if kind.micro:
        refuse_what_cannot_accumulate(model)
    if kind.xla:
        refuse_what_cannot_compile(model)

    def step(*arguments: Any) -> tuple[Any, Any, Any, Any]:
        """All replicas' parts of a step."""
        logs = Logs(model, later)
        of_here = replicas.strategy.experimental_local_results
        replacements = dividing(model, trains=not kind.unmodified)

        def replica(values: Sequence[Any], micro_batches: Any) -> tuple[Any, Any, Any]:
            own = _Replica(
                model, replicas, replacements, combine_rules, kind, logs, later
            )
            logged, stamps = own.step(values, micro_batches)
            return logged, stamps, counted(later.local)

        applying = nullcontext() if kind.unmodified else applying_sums()
        with applying, taking_keys_at_once():
            logged, stamps, local = replicas.strategy.run(replica, arguments)
        with tf.device(replicas.names[0]):
            known = logs.of_all(of_here(logged)[0], list(map(of_here, local)))
        if not kind.stamped:
            return *known, None
        stamps = of_here(stamps)
        with tf.device("/CPU:0"):
            return *known, stamps[0] if replicas.cluster else tf.stack(stamps)

    return step


class _Replica:
    """One replica's part of a training step."""

    def __init__(
        self,
        model: Any,
        replicas: Replicas,
        replacements: PartReplacements,
        combine_rules: CombineRules,
        kind: StepKind,
        logs: Logs,
        later: LaterResults,
    ) -> None:
        self._later = later
        self._model = model
        self._replicas = replicas
        self._replacements = replacements
        self._combine_rules = combine_rules
        self._kind = kind
        self._logs = logs
        self._state = State(
            model, combine_rules, replicated=kind.replicated, micro=kind.micro
        )
        self._rows = Rows()
        self._variables: list[Any] = []

    def step(self, values: Sequence[Any], micro_batches: Any) -> tuple[Any, Any]:
        """Trains on the replica's samples; returns what the logs are made of, and its stamps."""
        kind = self._kind
        number = number_of_replica()
        data, weights = values[number - self._replicas.first_own]
        weight = weights[0]
        batch = batch_of(data)
        micro_batch = micro_batches[number] if kind.micro else batch
        clock = self._replicas.clocks[number]
        points = Points(clock, batch, micro_batch, stamped=kind.stamped, xla=kind.xla)
        with points.begin(data) as data:
            if kind.micro:
                sums, grads = over_micro_batches(
                    self._computed, data, weights[1:], micro_batch
                )
            else:
                sums, grads = self._computed(data, weight)
        noise = sums[0]
        sums = together([sums, *counted(self._later.summed)])
        own = points.computed(
            noise, [sums, *sent(grads, self._replicas.summing.gradients)]
        )
        sums, *summed = points.summed(noise, over_replicas(own, kind.pack_bytes))
        summed = received(summed, grads)
        # Before `apply` changes it.
        scale = loss_scale(self._model.optimizer) if kind.noisy else None
        if self._variables:
            self._model.optimizer.apply(self._rows.of_sum(summed), self._variables)
        logged = self._set_states(sums)
        stamps = points.finished(weight, self._variables)
        if kind.noisy:
            # So that the stamped times do not include the norms.
            with tf.control_dependencies([stamps]):
                stamps = with_norms(stamps, tf.cast(noise, tf.float32), summed, scale)
        if kind.stamped and self._replicas.cluster is not None:
            stamps = _everyones(stamps)
        return logged, stamps

    def _computed(self, data: Any, weight: Any) -> tuple[Any, list[Any]]:
        """One vector of the noise, changes and logs of a part with that weight; its gradients."""
        if not self._kind.xla:
            return self._part(data, weight)
        compiled = tf.function(self._compiled_part, jit_compile=True, autograph=False)
        numbers, grads, early, places = compiled(data, weight)
        self._logs.have(early)
        self._rows.places = places or self._rows.places
        return numbers, grads

    def _compiled_part(self, data: Any, weight: Any) -> tuple[Any, ...]:
        """What `_part` gives, and what the logs and the first part's rows need of inside."""
        is_first = not self._rows.places
        numbers, grads = self._part(data, weight)
        places = self._rows.places if is_first else ()
        return numbers, grads, self._logs.early_reads(), places

    def _part(self, data: Any, weight: Any) -> tuple[Any, list[Any]]:
        kind = self._kind
        self._state.begin()
        with part_of(
            weight,
            self._replacements,
            self._combine_rules,
            replicated=kind.replicated,
            micro=kind.micro,
            compiled=kind.xla,
        ) as part:
            logs = self._model.train_step(data)
            grads: list[Any] = []
            if not kind.unmodified:
                grads, self._variables = gradients_of(self._model, part)
                self._state.have(part.changes)
        grads = self._rows.summable(grads)
        noise = tf.zeros(())
        if kind.noisy:
            noise = squared_norm(grads) / tf.cast(batch_of(data), tf.float32)
        logged = self._logs.of_part(logs, part)
        return together([noise, *self._state.shares(weight), *logged]), grads

    def _set_states(self, sums: Any) -> Any:
        """Gives layers their new states, from sums over all replicas; returns those of the logs."""
        _, *states, logged = parted(sums, [(1,), *self._state.shapes, (-1,)])
        self._state.set(states)
        return logged


def testing(
    model: Any,
    replicas: Replicas,
    combine_rules: CombineRules,
    later: LaterResults,
    *,
    replicated: bool,
) -> Callable[..., Any]:
    """A step of `evaluate` that returns its logs, as `Logs.of_all` does."""

    def replica(
        logs: Logs, replacements: PartReplacements, values: Sequence[Any], _: Any
    ) -> Any:
        data, weights = values[number_of_replica() - replicas.first_own]
        state = State(model, combine_rules, replicated=replicated)
        state.begin()
        with part_of(
            weights[0], replacements, combine_rules, replicated=replicated
        ) as part:
            own_logs = model.test_step(data)
        state.shares(weights[0])
        shares = logs.of_part(own_logs, part)
        return together([*shares, *counted(later.summed)]), counted(later.local)

    def step(*arguments: Any) -> tuple[Any, Any, Any]:
        logs = Logs(model, later)
        replacements = dividing(model, trains=False)
        strategy = replicas.strategy
        of_here = strategy.experimental_local_results
        shares, local = strategy.run(partial(replica, logs, replacements), arguments)
        with tf.device(replicas.names[0]):
            sums = strategy.reduce(tf.distribute.ReduceOp.SUM, shares, axis=None)
            return logs.of_all(sums, list(map(of_here, local)))

    return step


def predicting(
    model: Any, replicas: Replicas, *, replicated: bool
) -> Callable[..., Any]:
    """A step of `predict` that returns the outputs, in the order of the samples."""

    def of_all(values: Any) -> Any:
        """The outputs of all replicas; in a cluster each process already has them all."""
        parts = replicas.strategy.experimental_local_results(values)
        with tf.device("/CPU:0"):
            if replicated or replicas.cluster:
                return tf.identity(parts[0])
            return tf.concat(parts, axis=0)

    def replica(values: Sequence[Any]) -> Any:
        outputs = model.predict_step(
            values[number_of_replica() - replicas.first_own][0]
        )
        if replicated or replicas.cluster is None:
            return outputs
        gather = tf.distribute.get_replica_context().all_gather
        return keras.tree.map_structure(lambda own: gather(own, axis=0), outputs)

    # The parts of a batch first; TensorFlow warns of names that begin with _.
    def step(*arguments: Any) -> Any:
        return keras.tree.map_structure(
            of_all, replicas.strategy.run(replica, arguments[:1])
        )

    return step


def dividing(model: Any, *, trains: bool) -> PartReplacements:
    """What makes the model's own steps those of parts of a batch."""
    taking = taking_gradients(model) if trains else inlined(model)
    return weighing(model) | taking


def _everyones(stamps: Any) -> Any:
    """The stamps of all processes, by the first one's clock.

    The processes' clocks differ, and the moment when the gradients were summed is the only one that
    they share.
    """
    moment = stamps[SUMMED]
    times = stamps[: FINISHED + 1] - moment
    norms = stamps[FINISHED + 1 :]
    own = tf.concat([times, norms, [moment]], axis=0)
    gather = tf.distribute.get_replica_context().all_gather
    everyones = gather(own[tf.newaxis], axis=0)
    times = everyones[:, : FINISHED + 1] + everyones[0, -1]
    return tf.concat([times, everyones[:, FINISHED + 1 : -1]], axis=1)
