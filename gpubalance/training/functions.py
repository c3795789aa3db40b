"""What all replicas do with a dealt batch, each in one graph: train, test, predict.

Every replica runs the model's own `train_step` on its share; the results sum to those of one device: see losses.py.
Each function takes the dealt values and each replica's weight in the global loss; the one that trains also takes the
global batch and each replica's micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine.accumulate import accumulated, refuse_what_cannot_accumulate
from gpubalance.engine.step import FINISHED, SUMMED, Points, batch_of, sum_over_replicas
from gpubalance.training.changes import watched
from gpubalance.training.gradients import gradients_of, taking_gradients
from gpubalance.training.layers import meeting
from gpubalance.training.metrics import counting, warn_of_set_state
from gpubalance.training.noise import loss_scale, squares_a_sample, with_norms
from gpubalance.training.part import Part, part_of
from gpubalance.training.place import Place
from gpubalance.training.state import State


def training(
    model: Any, place: Place, *, whole: bool, accumulates: bool, stamped: bool, noisy: bool
) -> Callable[..., Any]:
    """A step that returns its logs and its stamps, as `build_step`'s step does, empty if it is not stamped.

    A `noisy` step's stamps have two columns more: Σ‖h‖²/b over a replica's parts, ‖g‖² (see `planning.noise.Norms`).
    """
    if accumulates:
        refuse_what_cannot_accumulate(model)

    def replica(values: Sequence[Any], weights: Any, global_batch: Any, micro_batches: Any) -> tuple[Any, Any]:
        """One replica's part of the step: its own logs and stamps."""
        context = tf.distribute.get_replica_context()
        number = _number(context)
        data, own, size = values[number - place.first], weights[number], micro_batches[number]
        batch = batch_of(data)
        points = Points(place.clocks[number], batch, size if accumulates else batch, stamped=stamped)
        data, state = points.begin(data), State(model)
        squares = None
        if accumulates:
            squares, grads, variables, logs, part = _accumulated(model, data, global_batch, size, noisy=noisy)
        else:
            with part_of(own, whole=whole, counts=not whole or number == 0) as part:
                grads, variables, logs = gradients_of(model, part, data)
        grads = points.computed(own, grads)
        summed = points.summed(own, sum_over_replicas(context, grads) if variables else [])
        scale = loss_scale(model.optimizer)  # before `apply` changes it
        if variables:
            model.optimizer.apply(summed, variables)
        state.meet(context, part.changes, own, whole=whole)
        warn_of_set_state(model, part)
        stamps = points.finished(own, variables)
        if noisy:
            with tf.control_dependencies([stamps]):  # so that the stamped times do not include the norms
                squares = squares_a_sample(grads, data) if squares is None else squares
                stamps = with_norms(stamps, squares, summed, scale)
        if place.cluster is not None and stamped:
            stamps = _everyones(context, stamps)
        return _own_logs(model, logs, own), stamps

    def step(*arguments: Any) -> tuple[Any, Any]:
        with counting(model), meeting(model), watched(), taking_gradients(model):
            logs, stamps = place.strategy.run(replica, args=arguments)
        of_here = place.strategy.experimental_local_results(stamps)
        return _logs(model, place, logs), of_here[0] if place.cluster and stamped else tf.stack(of_here)

    return step


def testing(model: Any, place: Place, *, whole: bool) -> Callable[..., Any]:
    """A step of `evaluate` that returns its logs."""

    def replica(values: Sequence[Any], weights: Any, *unused: Any) -> Any:
        del unused
        number = _number(tf.distribute.get_replica_context())
        with part_of(weights[number], whole=whole, counts=not whole or number == 0) as part:
            logs = model.test_step(values[number - place.first])
        warn_of_set_state(model, part)
        return _own_logs(model, logs, weights[number])

    def step(*arguments: Any) -> Any:
        with counting(model), meeting(model), watched():
            logs = place.strategy.run(replica, args=arguments)
        return _logs(model, place, logs)

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


def _everyones(context: Any, stamps: Any) -> Any:
    """The stamps of all processes, in seconds from the moment when the gradients were summed.

    The processes' clocks differ, and that moment is the only one that they share.
    """
    times = stamps[: FINISHED + 1] - stamps[SUMMED]
    return context.all_gather(tf.concat([times, stamps[FINISHED + 1 :]], axis=0)[tf.newaxis], axis=0)


def _number(context: Any) -> int:
    return int(tf.get_static_value(context.replica_id_in_sync_group))


def _own_logs(model: Any, logs: Any, weight: Any) -> dict[str, Any]:
    """This replica's part of what a user's own step returns; None for the names of metrics."""
    metrics = model.get_metrics_result()
    return {name: None if name in metrics else tf.cast(value, tf.float32) * weight for name, value in logs.items()}


def _logs(model: Any, place: Place, of_replicas: Any) -> Any:
    """The metrics over all samples, and the mean, by samples, of whatever else a user's own step returns."""
    metrics = model.get_metrics_result()

    def over_all(name: str, value: Any) -> Any:
        return metrics[name] if value is None else place.strategy.reduce(tf.distribute.ReduceOp.SUM, value, axis=None)

    return {name: over_all(name, value) for name, value in of_replicas.items()}


def _accumulated(
    model: Any, data: Any, global_batch: Any, micro_batch: Any, *, noisy: bool
) -> tuple[Any, Any, Any, dict[str, Any], Part]:
    """Σ‖h‖²/b of the micro-batches if `noisy`; the gradients, their variables, the metrics and the last micro-batch.

    Only metrics are logged: whatever else a `train_step` returns would be the last micro-batch's alone.
    """
    variables: list[Any] = []
    parts: list[Part] = []

    def gradients(some: Any, of: Any) -> tuple[Any, Any]:
        weight = tf.cast(batch_of(some), tf.float32) / of
        with part_of(weight, micro=True) as part:
            grads, variables[:], _logs = gradients_of(model, part, some)
        parts.append(part)
        return squares_a_sample(grads, some) if noisy else weight, grads

    squares, grads = accumulated(gradients, data, global_batch, micro_batch)
    return squares, grads, variables, dict.fromkeys(model.get_metrics_result()), parts[-1]
