"""The step, what all replicas do with a dealt batch, each in one graph: train, test, predict.

Every replica runs the model's own `train_step` on its share; the results sum to those of one
device: see weighing.py. What is measured and what is trained is this step. Each function takes the
dealt values, which are on the devices, and on the host each replica's micro-batch. Nothing comes to
a device or leaves it in the middle of a step, as whoever needs it would wait for all that is queued
there: the logs stay on the first one until somebody reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine.place import Place
from gpubalance.engine.step.gradients import gradients_of, inlined, taking_gradients
from gpubalance.engine.step.logs import Logs
from gpubalance.engine.step.part import part_of
from gpubalance.engine.step.points import FINISHED, SUMMED, Points, number_of_replica
from gpubalance.engine.step.state import State
from gpubalance.engine.step.sums import (
    Rows,
    batch_of,
    loss_scale,
    over_micro_batches,
    over_replicas,
    parted,
    received,
    refuse_what_cannot_accumulate,
    sent,
    squared_norm,
    together,
    with_norms,
)
from gpubalance.engine.step.weighing import weighing
from gpubalance.results.decomposition import Decomposition


@dataclass(frozen=True)
class StepKind:
    """A kind of training step.

    `whole`: each replica has the whole batch, and one counts. `micro`: batches are taken in
    micro-batches. `noisy`: the stamps have two columns more, Σ‖h‖²/b over a replica's parts and
    ‖g‖² (see `planning.noise.Norms`). `as_it_is`: one device runs a `train_step` that a split can't
    train, whatever it does. `pack_bytes`: how many bytes of gradients are summed in one all-reduce,
    all for 0.
    """

    whole: bool = False
    micro: bool = False
    stamped: bool = False
    noisy: bool = False
    xla: bool = False
    as_it_is: bool = False
    pack_bytes: int = 0


def training(
    model: Any, place: Place, verdict: Decomposition, kind: StepKind
) -> Callable[..., Any]:
    """A step that returns its logs, as `Logs.of_all` does, and its stamps, float64 [replicas, 4],
    if it is stamped.

    Stamps are the seconds at which a replica began to compute, had its own gradients, had their sum
    over all replicas, and had updated its weights.
    """
    if kind.micro:
        refuse_what_cannot_accumulate(model)

    def step(*arguments: Any) -> tuple[Any, Any, Any]:
        """All replicas' parts of a step."""
        logs = Logs(model, verdict, whole=kind.whole, xla=kind.xla)
        of_here = place.strategy.experimental_local_results

        def replica(*given: Any) -> tuple[Any, Any]:
            return _Replica(model, place, logs, kind).step(*given)

        with dividing(model, trains=not kind.as_it_is):
            logged, stamps = place.strategy.run(replica, arguments)
        with tf.device(place.names[0]):
            found = logs.of_all(of_here(logged)[0])
        if not kind.stamped:
            return *found, None
        stamps = of_here(stamps)
        with tf.device("/CPU:0"):
            return *found, stamps[0] if place.cluster else tf.stack(stamps)

    return step


class _Replica:
    """One replica's part of a training step."""

    def __init__(self, model: Any, place: Place, logs: Logs, kind: StepKind) -> None:
        self._model, self._place, self._logs, self._kind = model, place, logs, kind
        self._state, self._rows = State(model, logs.verdict, whole=kind.whole), Rows()
        self._variables: list[Any] = []
        self._begun = False

    def step(self, values: Sequence[Any], micro_batches: Any) -> tuple[Any, Any]:
        """Trains on the replica's samples; returns what the logs are made of, and its stamps."""
        kind, number, optimizer = self._kind, number_of_replica(), self._model.optimizer
        data, weights = values[number - self._place.first]
        weight, size = weights[0], micro_batches[number]
        batch = batch_of(data)
        clock = self._place.clocks[number]
        points = Points(clock, batch, size if kind.micro else batch, stamped=kind.stamped)
        with points.begin(data) as data:
            if kind.micro:
                sums, grads = over_micro_batches(self._computed, data, weights[1:], size)
            else:
                sums, grads = self._computed(data, weight)
        noise, gradients = sums[0], self._place.summing.gradients
        sums = together([sums, *self._state.counted()])
        own = points.computed(noise, [sums, *sent(grads, gradients)])
        sums, *summed = points.summed(noise, over_replicas(own, kind.pack_bytes))
        summed = received(summed, grads)
        scale = loss_scale(optimizer) if kind.noisy else None  # before `apply` changes it
        if self._variables:
            optimizer.apply(self._rows.of_sum(summed), self._variables)
        logged = self._taken(sums)
        stamps = points.finished(weight, self._variables)
        if kind.noisy:
            # So that the stamped times do not include the norms.
            with tf.control_dependencies([stamps]):
                stamps = with_norms(stamps, tf.cast(noise, tf.float32), summed, scale)
        return logged, _everyones(
            stamps
        ) if self._place.cluster is not None and kind.stamped else stamps

    def _computed(self, data: Any, weight: Any) -> tuple[Any, list[Any]]:
        """As one vector the noise, changes and logs of a part with that weight; and its
        gradients.
        """
        part = self._part
        return (tf.function(part, jit_compile=True, autograph=False) if self._kind.xla else part)(
            data, weight
        )

    def _part(self, data: Any, weight: Any) -> tuple[Any, list[Any]]:
        kind, logs = self._kind, self._logs
        self._state.begin(again=self._begun)
        self._begun = True
        with part_of(weight, logs.verdict, whole=kind.whole, micro=kind.micro) as part:
            if kind.as_it_is:
                grads, own_logs = list[Any](), self._model.train_step(data)
            else:
                grads, self._variables[:], own_logs = gradients_of(self._model, part, data)
        grads = self._rows.summable(grads)
        noise = (
            squared_norm(grads) / tf.cast(batch_of(data), tf.float32)
            if kind.noisy
            else tf.zeros(())
        )
        logged = logs.of_part(own_logs, part)
        return together([noise, *self._state.shares(weight), *logged]), grads

    def _taken(self, sums: Any) -> Any:
        """Gives layers their new states, from the sums over all replicas; returns what the logs are
        made of.
        """
        _, *states, logged = parted(sums, [(1,), *self._state.shapes, (-1,)])
        self._state.set(states)
        return logged


def testing(model: Any, place: Place, verdict: Decomposition, kind: StepKind) -> Callable[..., Any]:
    """A step of `evaluate` that returns its logs, as `Logs.of_all` does."""

    def replica(logs: Logs, values: Sequence[Any], _: Any) -> Any:
        data, weights = values[number_of_replica() - place.first]
        state = State(model, verdict, whole=kind.whole)
        state.begin()
        with part_of(weights[0], verdict, whole=kind.whole) as part:
            own_logs = model.test_step(data)
        state.shares(weights[0])
        return together([*logs.of_part(own_logs, part), *state.counted()])

    def step(*arguments: Any) -> tuple[Any, Any]:
        logs = Logs(model, verdict, whole=kind.whole)
        with dividing(model, trains=False):
            shares = place.strategy.run(replica, (logs, *arguments))
        with tf.device(place.names[0]):
            return logs.of_all(place.strategy.reduce(tf.distribute.ReduceOp.SUM, shares, axis=None))

    return step


def predicting(model: Any, place: Place, *, whole: bool) -> Callable[..., Any]:
    """A step of `predict` that returns the outputs, in the order of the samples."""

    def together(values: Any) -> Any:
        """The outputs of all replicas; in a cluster each process already has them all."""
        parts = place.strategy.experimental_local_results(values)
        with tf.device("/CPU:0"):
            return tf.identity(parts[0]) if whole or place.cluster else tf.concat(parts, axis=0)

    def replica(values: Sequence[Any]) -> Any:
        outputs = model.predict_step(values[number_of_replica() - place.first][0])
        if place.cluster is None or whole:
            return outputs
        gather = tf.distribute.get_replica_context().all_gather
        return keras.tree.map_structure(lambda own: gather(own, axis=0), outputs)

    # The parts of a batch first; TensorFlow warns of names that begin with _.
    def step(*arguments: Any) -> Any:
        return keras.tree.map_structure(together, place.strategy.run(replica, arguments[:1]))

    return step


@contextmanager
def dividing(model: Any, *, trains: bool) -> Iterator[None]:
    """Makes the model's own steps those of parts of a batch."""
    taking = taking_gradients(model) if trains else inlined(model)
    with weighing(model), taking:
        yield


def _everyones(stamps: Any) -> Any:
    """The stamps of all processes, in seconds from the moment when the gradients were summed.

    The processes' clocks differ, and that moment is the only one that they share.
    """
    times = stamps[: FINISHED + 1] - stamps[SUMMED]
    own = tf.concat([times, stamps[FINISHED + 1 :]], axis=0)
    return tf.distribute.get_replica_context().all_gather(own[tf.newaxis], axis=0)
