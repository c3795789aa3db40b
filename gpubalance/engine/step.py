"""The synchronous training step over replicas whose batches differ, with exactly one large batch's gradient.

Each replica's loss is Σ sample losses ÷ *global* batch, plus the model's own losses × its part of the global batch;
gradients are summed over replicas, and then clipped, searched for infinities and applied. So each sample weighs the
same wherever it ran, and a weight regulariser, which every replica computes, counts once: Σ nᵢ/B = 1. (Keras' `fit`
instead takes the mean of the replicas' means, which is another gradient when batches differ.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from gpubalance.engine.accumulate import accumulated, refuse_what_cannot_accumulate
from gpubalance.engine.keras_inside import SUM, summing
from gpubalance.engine.losses import CompiledLoss, Loss
from gpubalance.engine.pace import Clock, PacedClock

Step = Any  # a tf.function: TensorFlow has no type for one
# A replica's stamps in their order: it began to compute, it had its own gradients, it had their sum over all replicas,
# its weights were updated.
BEGAN, COMPUTED, SUMMED, FINISHED = range(4)
# Nothing orders a replica's stamps where it is not paced: of a tiny model a late one may come out of turn.
_SHORTEST_S = 1e-9


def build_step(
    strategy: Any,
    model: Any,
    loss: Loss | CompiledLoss,
    optimizer: Any,
    clocks: Sequence[Clock],
    element_spec: Any,
    *,
    stamped: bool,
    micro: bool = False,
    xla: bool = False,
) -> Step:
    """One `tf.function` for every split: `step(data, global_batch) -> (loss, stamps)`.

    `data` holds each replica's (inputs, labels) or (inputs, labels, weights), `global_batch` is a float32 scalar.
    The loss is that of the global batch before the update. `stamps` is float64 [replicas, 4]: the seconds at which a
    replica began to compute, had its own gradients, had their sum over all replicas, and had updated its weights. Where
    it is not `stamped` they are empty and cost nothing.

    With `micro` it is `step(data, global_batch, micro_batches)`, the last an int32 size for each replica: batches are
    taken in micro-batches of that size. It is another trace, so that a step without micro-batches pays nothing.

    The optimizer is changed: from now on it takes gradients that are summed. Raises BadInput for a model or an
    optimizer that can't be trained so.
    """
    setattr(summing(optimizer), SUM, list)
    gradients = _gradient_function(model, loss, optimizer, xla=xla)
    if micro:
        refuse_what_cannot_accumulate(model)

    def replica_step(data: Any, global_batch: Any, *micro_batches: Any) -> tuple[Any, Any]:
        """One replica's part of the step: its loss, and its stamps."""
        context = tf.distribute.get_replica_context()
        replica = tf.get_static_value(context.replica_id_in_sync_group)
        batch = batch_of(data)
        size = micro_batches[0][replica] if micro else batch
        points = Points(clocks[replica], batch, size, stamped=stamped)
        data = points.begin(data)
        if micro:
            local_loss, grads = accumulated(gradients, data, global_batch, size)
        else:
            local_loss, grads = gradients(data, global_batch)
        summed = sum_over_replicas(context, points.computed(local_loss, grads))
        optimizer.apply(points.summed(local_loss, summed), model.trainable_variables)
        return local_loss, points.finished(local_loss, model.trainable_variables)

    sizes = [tf.TensorSpec((len(clocks),), tf.int32)] if micro else []

    @tf.function(input_signature=[element_spec, tf.TensorSpec((), tf.float32), *sizes], autograph=False)
    def step(*arguments: Any) -> tuple[Any, Any]:
        losses, stamps = strategy.run(replica_step, args=arguments)
        total = strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)
        return total, tf.stack(strategy.experimental_local_results(stamps))

    return step


def sum_over_replicas(context: Any, grads: Sequence[Any]) -> list[Any]:
    """The replicas' gradients, summed; None stays None. An infinity of one replica is then one of all of them."""
    summed = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, [g for g in grads if g is not None]))
    return [None if g is None else next(summed) for g in grads]


def _gradient_function(
    model: Any, loss: Loss | CompiledLoss, optimizer: Any, *, xla: bool
) -> Callable[..., tuple[Any, Any]]:
    """(data, global batch) → the replica's part of the loss, and the gradients (scaled for float16)."""

    def gradients(data: Any, global_batch: Any) -> tuple[Any, Any]:
        """Of one replica; what it gives is to be summed over them."""
        inputs, labels, *weights = data
        with tf.GradientTape() as tape:
            outputs = model(inputs, training=True)
            value = loss.sum(labels, outputs, *weights) / global_batch
            if model.losses:
                part = tf.cast(batch_of(inputs), tf.float32) / global_batch
                value += tf.add_n([tf.cast(own, tf.float32) for own in model.losses]) * part
            scaled = optimizer.scale_loss(value)
        return value, tape.gradient(scaled, [v.value for v in model.trainable_variables])

    # Under a strategy XLA compiles this function only: the all-reduce between replicas is not for it.
    return tf.function(gradients, jit_compile=True, autograph=False) if xla else gradients


def batch_of(inputs: Any) -> Any:
    """The number of samples, an int32 scalar."""
    return tf.shape(tf.nest.flatten(inputs)[0])[0]


class Points:
    """Calls a clock at the four points of one replica's step.

    At two of them where it only counts; not at all where it neither paces, counts nor is stamped.
    """

    def __init__(self, clock: Clock, batch: Any, micro_batch: Any, *, stamped: bool) -> None:
        """`batch` is the replica's, `micro_batch` what it takes at a time: int32 scalars."""
        self._clock = clock
        self._paced = isinstance(clock, PacedClock)
        self._stamped = stamped
        self._sizes = [batch, micro_batch]
        self._stamps: list[Any] = []

    def begin(self, data: Any) -> Any:
        """The data; a paced replica gets it when its step begins, if its memory holds a micro-batch."""
        if not self._called:
            return data
        # On a GPU the stamp waits for what is queued before: the marker is computed on the device, after all of that.
        numbers = [values for values in tf.nest.flatten(data) if values.dtype != tf.string]
        first = tf.reshape(numbers[0], [-1])[0] if numbers else 0.0
        return self._call(self._clock.begin, self._sizes, tf.negative(tf.cast(first, tf.float32)), data)

    def computed(self, loss: Any, grads: Sequence[Any]) -> Sequence[Any]:
        """The gradients; a paced replica gets them when its profile's compute time is over."""
        if not self._called and not self._clock.counts:
            return grads
        marker = _marker(loss, [grad for grad in grads if grad is not None])
        return self._call(self._clock.computed, self._sizes, marker, grads)  # type: ignore[no-any-return]

    def summed(self, loss: Any, grads: Sequence[Any]) -> Sequence[Any]:
        """The summed gradients; a stamped replica gets the first when all are there, a paced one when sync is over."""
        if not self._called and not self._clock.counts:
            return grads
        marker = _marker(loss, [grad for grad in grads if grad is not None])
        grads = self._call(self._clock.summed, [], marker, grads)
        # Alone a device would update some weights while it still computes others' gradients: two times in one.
        return _after(marker, grads) if self._stamped and not self._paced else grads

    def finished(self, loss: Any, variables: Sequence[Any]) -> Any:
        """The replica's four stamps, float64 seconds; empty where it is not stamped."""
        if self._called:
            # Reading each variable comes after its update: that is what TensorFlow orders by.
            marker = _marker(loss, [tf.convert_to_tensor(v.value) for v in variables])
            self._call(self._clock.finished, [], marker, ())
        return tf.stack(self._stamps) if self._stamped else tf.zeros((0,), tf.float64)

    @property
    def _called(self) -> bool:
        return self._paced or self._stamped

    def _call(self, function: Callable[..., float], sizes: Sequence[Any], marker: Any, values: Any) -> Any:
        """Calls the clock on the host when `marker` is there; returns `values`, on a paced device after the call.

        TensorFlow chains stateful ops of all replicas of a function: sleeping replicas would take turns. This one is
        told to run independently. On a GPU nothing waits for the call, or measuring would slow down what it measures.
        """
        # In their order, or on a crowded host the first of two stamps may be taken after the second.
        with tf.device("/CPU:0"), tf.control_dependencies(self._stamps[-1:]):
            stamp = tf.numpy_function(lambda *given: function(*given[:-1]), [*sizes, marker], tf.float64)
        stamp.set_shape(())
        if not tf.executing_eagerly():  # as a user's model may want it
            tf.compat.v1.get_default_graph().experimental_acd_manager.run_independently(stamp.op)
        self._stamps.append(stamp)
        return _after(stamp, values) if self._paced else values


def _after(op: Any, values: Any) -> Any:
    """The values, there no earlier than `op` is."""
    with tf.control_dependencies([op]):
        return tf.nest.map_structure(lambda value: None if value is None else tf.identity(value), values)


def _marker(loss: Any, done: Sequence[Any]) -> Any:
    """A scalar on the replica's device that is there when all of `done` is.

    The host's stamp takes it as *data*: on a GPU its copy to the host waits for the compute stream, whereas a bare
    control edge would only wait for the kernels to be queued. It computes something, or it would be optimised away.
    """
    with tf.control_dependencies(list(done)):
        return tf.negative(loss)


def stamped_times(stamps: Any) -> dict[str, Any]:
    """A timing's seconds of a stamped step, by its stamps [replica, (began, computed, summed, finished)].

    A replica whose update is over begins with its next step: so a step's time is a replica's own, not that from the
    first to begin to the last to end.
    """
    return {
        "compute_s": tuple(max(_SHORTEST_S, float(s)) for s in stamps[:, COMPUTED] - stamps[:, BEGAN]),
        "update_s": tuple(max(0.0, float(s)) for s in stamps[:, FINISHED] - stamps[:, SUMMED]),
        "step_s": max(_SHORTEST_S, float((stamps[:, FINISHED] - stamps[:, BEGAN]).max())),
    }
