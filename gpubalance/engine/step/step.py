"""The step, what all replicas do with a dealt batch, each in one graph: train, test, predict.

Every replica runs the model's own `train_step` on its share; the results sum to those of one device: see losses.py.
What is measured and what is trained is this step. Each function takes the dealt values and each replica's weight in the
global loss; the one that trains also takes the global batch and each replica's micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine.place import Place
from gpubalance.engine.step.accumulate import accumulated, refuse_what_cannot_accumulate
from gpubalance.engine.step.changes import watched
from gpubalance.engine.step.gradients import gradients_of, inlined, taking_gradients
from gpubalance.engine.step.layers import meeting
from gpubalance.engine.step.logs import Logs
from gpubalance.engine.step.losses import weighing
from gpubalance.engine.step.metrics import noting_results
from gpubalance.engine.step.noise import loss_scale, squares_a_sample, with_norms
from gpubalance.engine.step.part import part_of
from gpubalance.engine.step.points import FINISHED, SUMMED, Points, batch_of, sum_over_replicas
from gpubalance.engine.step.rows import Rows
from gpubalance.engine.step.state import State
from gpubalance.engine.step.verdict import Verdict


@dataclass(frozen=True)
class Kind:
    """A kind of training step.

    `whole`: each replica has the whole batch, and one counts. `micro`: batches are taken in micro-batches. `noisy`: the
    stamps have two columns more, Σ‖h‖²/b over a replica's parts and ‖g‖² (see `planning.noise.Norms`). `as_it_is`: one
    device runs a `train_step` that a split can't train, whatever it does.
    """

    whole: bool = False
    micro: bool = False
    stamped: bool = False
    noisy: bool = False
    xla: bool = False
    as_it_is: bool = False


def training(model: Any, place: Place, verdict: Verdict, kind: Kind) -> Callable[..., Any]:
    """A step that returns its logs and its stamps, float64 [replicas, 4]; they are empty if it is not stamped.

    Stamps are the seconds at which a replica began to compute, had its own gradients, had their sum over all replicas,
    and had updated its weights.
    """
    if kind.micro:
        refuse_what_cannot_accumulate(model)

    def replica(
        logs: Logs, values: Sequence[Any], weights: Any, global_batch: Any, micro_batches: Any
    ) -> tuple[Any, Any]:
        """One replica's part of the step: the logs that depend on samples, and its stamps."""
        context = tf.distribute.get_replica_context()
        number = _number(context)
        data, own, size = values[number - place.first], weights[number], micro_batches[number]
        batch = batch_of(data)
        points = Points(place.clocks[number], batch, size if kind.micro else batch, stamped=kind.stamped)
        local = _Local(model, logs, State(model, verdict, whole=kind.whole), kind)
        data = points.begin(data)
        sums, grads = local.accumulated(data, global_batch, size) if kind.micro else local.gradients(data, own)
        noise = sums[0]
        summed = sum_over_replicas(context, points.computed(noise, [sums, *grads]))
        sums, *summed = points.summed(noise, summed)
        scale = loss_scale(model.optimizer) if kind.noisy else None  # before `apply` changes it
        if local.variables:
            model.optimizer.apply(local.rows.of_sum(summed), local.variables)
        logged = local.take(sums)
        stamps = points.finished(own, local.variables)
        if kind.noisy:
            with tf.control_dependencies([stamps]):  # so that the stamped times do not include the norms
                stamps = with_norms(stamps, noise, summed, scale)
        if place.cluster is not None and kind.stamped:
            stamps = _everyones(context, stamps)
        return logged, stamps

    def step(*arguments: Any) -> tuple[Any, Any]:
        logs = Logs(model, verdict, whole=kind.whole, xla=kind.xla)
        of_here = place.strategy.experimental_local_results
        with in_parts(model, trains=not kind.as_it_is):
            logged, stamps = place.strategy.run(replica, args=(logs, *arguments))
        stamps = of_here(stamps)
        found = logs.of_all([of_here(one)[0] for one in logged])
        return found, stamps[0] if place.cluster and kind.stamped else tf.stack(stamps)

    return step


class _Local:
    """What one replica computes of its own: gradients, shares in the logs, changes of its layers' states."""

    def __init__(self, model: Any, logs: Logs, state: State, kind: Kind) -> None:
        self._model, self._logs, self._kind = model, logs, kind
        self.state, self.rows = state, Rows()
        self.variables: list[Any] = []
        self._begun = False

    def gradients(self, data: Any, weight: Any) -> tuple[Any, list[Any]]:
        """As one vector the noise, shares and changes of a part with that weight; and its gradients."""
        compute = tf.function(self._compute, jit_compile=True, autograph=False) if self._kind.xla else self._compute
        return compute(data, weight)

    def _compute(self, data: Any, weight: Any) -> tuple[Any, list[Any]]:
        kind = self._kind
        self.state.begin(again=self._begun)
        self._begun = True
        with part_of(weight, self._logs.verdict, whole=kind.whole, micro=kind.micro) as part:
            if kind.as_it_is:
                grads, logs = list[Any](), self._model.train_step(data)
            else:
                grads, self.variables[:], logs = gradients_of(self._model, part, data)
        grads = self.rows.summable(grads)
        noise = squares_a_sample(grads, data) if kind.noisy else tf.zeros(())
        shares = [*self._logs.of_part(logs, part), *self.state.shares(weight)]
        with tf.control_dependencies(self.state.counted() if kind.stamped else []):  # metrics are compute, too
            return tf.concat([tf.reshape(one, [-1]) for one in (noise, *shares)], axis=0), grads

    def accumulated(self, data: Any, global_batch: Any, micro_batch: Any) -> tuple[Any, list[Any]]:
        """The same for data of which `micro_batch` samples are in memory at a time."""

        def gradients(some: Any, of: Any) -> tuple[Any, Any]:
            return self.gradients(some, tf.cast(batch_of(some), tf.float32) / of)

        return accumulated(gradients, data, global_batch, micro_batch)

    def take(self, sums: Any) -> list[Any]:
        """Gives layers their new states, from the sums over all replicas; returns the logs that depend on samples."""
        shapes = [*self._logs.shapes, *self.state.shapes]
        flat = tf.split(sums, [1, *(shape.num_elements() for shape in shapes)])[1:]
        logged = [tf.reshape(one, shape) for one, shape in zip(flat, self._logs.shapes, strict=False)]
        self.state.set([tf.reshape(*one) for one in zip(flat[len(logged) :], self.state.shapes, strict=True)])
        return logged


def testing(model: Any, place: Place, verdict: Verdict, *, whole: bool) -> Callable[..., Any]:
    """A step of `evaluate` that returns its logs."""

    def replica(logs: Logs, values: Sequence[Any], weights: Any, *unused: Any) -> Any:
        del unused
        number = _number(tf.distribute.get_replica_context())
        state = State(model, verdict, whole=whole)
        state.begin()
        with part_of(weights[number], verdict, whole=whole) as part:
            own_logs = model.test_step(values[number - place.first])
        state.shares(weights[number])
        return logs.of_part(own_logs, part)

    def step(*arguments: Any) -> Any:
        logs, total = Logs(model, verdict, whole=whole), tf.distribute.ReduceOp.SUM
        with in_parts(model, trains=False):
            shares = place.strategy.run(replica, args=(logs, *arguments))
        return logs.of_all([place.strategy.reduce(total, share, axis=None) for share in shares])

    return step


def predicting(model: Any, place: Place, *, whole: bool) -> Callable[..., Any]:
    """A step of `predict` that returns the outputs, in the order of the samples."""

    def together(values: Any) -> Any:
        """The outputs of all replicas; in a cluster each process already has them all."""
        parts = place.strategy.experimental_local_results(values)
        with tf.device("/CPU:0"):
            return tf.identity(parts[0]) if whole or place.cluster else tf.concat(parts, axis=0)

    def replica(values: Sequence[Any]) -> Any:
        context = tf.distribute.get_replica_context()
        outputs = model.predict_step(values[_number(context) - place.first])
        if place.cluster is None or whole:
            return outputs
        return keras.tree.map_structure(lambda own: context.all_gather(own, axis=0), outputs)

    def step(values: Sequence[Any], *unused: Any) -> Any:
        del unused
        return keras.tree.map_structure(together, place.strategy.run(replica, args=(values,)))

    return step


@contextmanager
def in_parts(model: Any, *, trains: bool) -> Iterator[None]:
    """Makes the model's own steps those of parts of a batch."""
    taking = taking_gradients(model) if trains else inlined(model)
    with weighing(), noting_results(model), meeting(model), watched(), taking:
        yield


def _everyones(context: Any, stamps: Any) -> Any:
    """The stamps of all processes, in seconds from the moment when the gradients were summed.

    The processes' clocks differ, and that moment is the only one that they share.
    """
    times = stamps[: FINISHED + 1] - stamps[SUMMED]
    return context.all_gather(tf.concat([times, stamps[FINISHED + 1 :]], axis=0)[tf.newaxis], axis=0)


def _number(context: Any) -> int:
    return int(tf.get_static_value(context.replica_id_in_sync_group))
