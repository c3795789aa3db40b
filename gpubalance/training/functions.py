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
from gpubalance.training.logs import Logs
from gpubalance.training.metrics import counting
from gpubalance.training.noise import loss_scale, squares_a_sample, with_norms
from gpubalance.training.part import Part, part_of
from gpubalance.training.place import Place
from gpubalance.training.rows import Rows
from gpubalance.training.state import State


def training(
    model: Any, place: Place, *, whole: bool, accumulates: bool, stamped: bool, noisy: bool
) -> Callable[..., Any]:
    """A step that returns its logs and its stamps, as `build_step`'s step does, empty if it is not stamped.

    A `noisy` step's stamps have two columns more: Σ‖h‖²/b over a replica's parts, ‖g‖² (see `planning.noise.Norms`).
    """
    if accumulates:
        refuse_what_cannot_accumulate(model)

    def replica(
        logs: Logs, values: Sequence[Any], weights: Any, global_batch: Any, micro_batches: Any
    ) -> tuple[Any, Any]:
        """One replica's part of the step: its shares in the logs, and its stamps."""
        context = tf.distribute.get_replica_context()
        number = _number(context)
        data, own, size = values[number - place.first], weights[number], micro_batches[number]
        batch = batch_of(data)
        points = Points(place.clocks[number], batch, size if accumulates else batch, stamped=stamped)
        data, state, rows = points.begin(data), State(model), Rows()
        squares = None
        if accumulates:
            taken = _accumulated(model, logs, rows, state, data, global_batch, size, noisy=noisy)
            squares, grads, variables, shares, part = taken
        else:
            with part_of(own, whole=whole, counts=not whole or number == 0) as part:
                grads, variables, own_logs = gradients_of(model, part, data)
            grads = rows.summable(grads)
            shares = logs.of_part(own_logs, part)
        grads = points.computed(own, grads)
        summed = points.summed(own, sum_over_replicas(context, grads) if variables else [])
        scale = loss_scale(model.optimizer)  # before `apply` changes it
        if variables:
            model.optimizer.apply(rows.of_sum(summed), variables)
        state.meet(context, part, own)
        stamps = points.finished(own, variables)
        if noisy:
            with tf.control_dependencies([stamps]):  # so that the stamped times do not include the norms
                squares = squares_a_sample(grads, data) if squares is None else squares
                stamps = with_norms(stamps, squares, summed, scale)
        if place.cluster is not None and stamped:
            stamps = _everyones(context, stamps)
        return shares, stamps

    def step(*arguments: Any) -> tuple[Any, Any]:
        logs = Logs(model, place, whole=whole)
        with counting(model), meeting(model), watched(), taking_gradients(model):
            shares, stamps = place.strategy.run(replica, args=(logs, *arguments))
        of_here = place.strategy.experimental_local_results(stamps)
        return logs.of_all(shares), of_here[0] if place.cluster and stamped else tf.stack(of_here)

    return step


def testing(model: Any, place: Place, *, whole: bool) -> Callable[..., Any]:
    """A step of `evaluate` that returns its logs."""

    def replica(logs: Logs, values: Sequence[Any], weights: Any, *unused: Any) -> Any:
        del unused
        number = _number(tf.distribute.get_replica_context())
        with part_of(weights[number], whole=whole, counts=not whole or number == 0) as part:
            own_logs = model.test_step(values[number - place.first])
        return logs.of_part(own_logs, part)

    def step(*arguments: Any) -> Any:
        logs = Logs(model, place, whole=whole)
        with counting(model), meeting(model), watched():
            shares = place.strategy.run(replica, args=(logs, *arguments))
        return logs.of_all(shares)

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


def _accumulated(
    model: Any, logs: Logs, rows: Rows, state: State, data: Any, global_batch: Any, micro_batch: Any, *, noisy: bool
) -> tuple[Any, Any, Any, dict[str, Any], Part]:
    """Σ‖h‖²/b of the micro-batches if `noisy`; gradients, their variables, shares in the logs, the first one's part."""
    variables: list[Any] = []
    parts: list[Part] = []
    shares: dict[str, Any] = {}

    def gradients(some: Any, of: Any) -> tuple[Any, Any]:
        """A micro-batch's gradients, and its noise and shares in the logs as one tensor, out of `of` samples."""
        weight = tf.cast(batch_of(some), tf.float32) / of
        if parts:
            state.begin_again(parts[0])
        with part_of(weight, micro=True) as part:
            grads, variables[:], own_logs = gradients_of(model, part, some)
        shares.update(logs.of_part(own_logs, part))
        parts.append(part)
        squares = squares_a_sample(grads, some) if noisy else weight
        sums = tf.concat([tf.reshape(one, [-1]) for one in (squares, *shares.values())], axis=0)
        return sums, rows.summable(grads)

    sums, grads = accumulated(gradients, data, global_batch, micro_batch)
    squares, *sums = tf.split(sums, [1, *(share.shape.num_elements() for share in shares.values())])
    shares = {name: tf.reshape(one, share.shape) for (name, share), one in zip(shares.items(), sums, strict=True)}
    return squares[0], grads, variables, shares, parts[0]
