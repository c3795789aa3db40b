"""Sums gradients over micro-batches, one after the other, and then over replicas, and takes their norms.

A micro-batch's part of the loss is already divided by the *global* batch, so the sum over micro-batches is exactly the
gradient of the whole batch, as the sum over replicas is. From squared norms the noise scale is estimated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine.sources import has_fixed_rows
from gpubalance.engine.step.verdict import SUM
from gpubalance.errors import BadInput


def batch_of(inputs: Any) -> Any:
    """The number of samples, an int32 scalar."""
    return tf.shape(tf.nest.flatten(inputs)[0])[0]


def weighed(value: Any, weight: Any, power: Any) -> Any:
    """A part's share of a quantity, times its weight to that power: over all parts the shares sum to the whole's."""
    return value if isinstance(power, int) and power == SUM else value * tf.cast(weight**power, value.dtype)


def wide(dtype: Any) -> Any:
    """The dtype in which numbers of this one are weighed and summed: float64 for float64, else float32."""
    return tf.float64 if dtype == tf.float64 else tf.float32


def together(values: Sequence[Any]) -> Any:
    """The numbers of all these tensors in one vector, in the widest of their dtypes."""
    dtype = tf.float64 if any(value.dtype == tf.float64 for value in values) else tf.float32
    return tf.concat([tf.reshape(tf.cast(value, dtype), [-1]) for value in values], axis=0)


def over_replicas(grads: Sequence[Any]) -> list[Any]:
    """The sums of the replicas' gradients; None stays None. An infinity on one replica reaches all of them.

    Those of each dtype apart: TensorFlow packs what it sums together into one tensor.
    """
    context, summed = tf.distribute.get_replica_context(), list(grads)
    places: dict[Any, list[int]] = {}
    for place, grad in enumerate(grads):
        if grad is not None:
            places.setdefault(grad.dtype, []).append(place)
    for alike in places.values():
        sums = context.all_reduce(tf.distribute.ReduceOp.SUM, [grads[place] for place in alike])
        for place, total in zip(alike, sums, strict=True):
            summed[place] = total
    return summed


class Rows:
    """A replica's gradients by rows. Those of positions are the same in each part of a batch, those of words are not.

    One device gets a row of each position, the sum over all samples, but a row for each occurrence of a word.
    Optimizers square and clip each row that they get.
    """

    def __init__(self) -> None:
        self._first: Sequence[Any] = ()

    def summable(self, grads: Sequence[Any]) -> list[Any]:
        """A part's gradients: those whose rows all parts have are dense, as then they add up row by row."""
        self._first = self._first or grads  # of micro-batches the others are inside a loop
        return [grad.values if has_fixed_rows(grad) else grad for grad in grads]

    def of_sum(self, sums: Sequence[Any]) -> list[Any]:
        """The sums over all parts as gradients by rows again."""
        return [
            tf.IndexedSlices(one, grad.indices, grad.dense_shape) if has_fixed_rows(grad) else one
            for one, grad in zip(sums, self._first, strict=True)
        ]


def over_micro_batches(
    gradients: Callable[..., tuple[Any, Any]], data: Any, global_batch: Any, micro_batch: Any
) -> tuple[Any, list[Any]]:
    """The loss and the gradients of `data`, of which `micro_batch` samples are in memory at a time.

    `micro_batch` is an int32 scalar; if it does not divide the batch, the first micro-batch is the smaller one.
    Gradients keep their form: None, dense or IndexedSlices.
    """
    batch = batch_of(data)
    count = -(-batch // micro_batch)
    first = batch - (count - 1) * micro_batch

    def part(index: Any) -> tuple[Any, Any]:
        end = first + index * micro_batch
        begin = tf.maximum(0, end - micro_batch)
        some = tf.nest.map_structure(lambda values: values[begin:end], data)
        return gradients(some, tf.cast(batch_of(some), tf.float64) / global_batch)

    def add(index: Any, total: Any, sums: Any) -> tuple[Any, Any, Any]:
        # A loop's body forgets its device, and so a nested function would take another replica's weights.
        with tf.device(loss.device):
            own_loss, grads = part(index)
            sums = tuple(_plus(summed, grad, index) for summed, grad in zip(sums, grads, strict=True))
            return index + 1, total + own_loss, sums

    # The first one is outside the loop, so that one micro-batch needs no second set of gradients in memory.
    loss, grads = part(tf.constant(0))
    start = tf.constant(1), loss, tuple(_first(grad, count) for grad in grads)
    _, total, sums = tf.while_loop(lambda index, *_: index < count, add, start, parallel_iterations=1)
    return total, [_as_before(summed, grad) for summed, grad in zip(sums, grads, strict=True)]


def _first(grad: Any, count: Any) -> tuple[Any, ...]:
    """The initial sum: the gradient itself; for an embedding's, arrays with room for the rows of `count` gradients."""
    if not isinstance(grad, tf.IndexedSlices):
        return () if grad is None else (grad,)
    # Rows are not summed: Keras' Adam squares a row's gradients before it adds them, so it must get each one.
    parts = grad.values, grad.indices
    rows = (tf.TensorArray(one.dtype, count, element_shape=one.shape, infer_shape=False) for one in parts)
    return tuple(array.write(0, one) for array, one in zip(rows, parts, strict=True))


def _plus(summed: tuple[Any, ...], grad: Any, index: Any) -> tuple[Any, ...]:
    """The sum after adding the gradient of micro-batch `index`."""
    if isinstance(grad, tf.IndexedSlices):
        values, indices = summed
        return values.write(index, grad.values), indices.write(index, grad.indices)
    return () if grad is None else (summed[0] + grad,)


def _as_before(summed: tuple[Any, ...], grad: Any) -> Any:
    """The finished sum in the form of `grad`."""
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(*(rows.concat() for rows in summed), grad.dense_shape)
    return None if grad is None else summed[0]


def refuse_what_cannot_accumulate(model: Any) -> None:
    """Raises BadInput for synchronised batch normalisation: replicas with different micro-batches can't meet in it."""
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized:
            raise BadInput(
                f"the model's layer {layer.name} synchronises batch normalisation, which micro-batches do not allow",
                remedy="leave out --micro-batches, or micro_batches= of a Split; or synchronized=False",
            )


def squared_norm(grads: Sequence[Any]) -> Any:
    """‖g‖² over all gradients: a float32 scalar."""
    return tf.add_n([_squares(grad) for grad in grads if grad is not None] or [tf.constant(0.0)])


def with_norms(stamps: Any, squares: Any, summed: Sequence[Any], scale: Any) -> Any:
    """A replica's stamps, then its parts' Σ‖h‖²/b and the whole batch's ‖g‖², without the optimizer's loss scale."""
    norms = tf.stack([squares, squared_norm(summed)])
    return tf.concat([stamps, tf.cast(norms, tf.float64) / tf.cast(scale, tf.float64) ** 2], axis=0)


def _squares(grad: Any) -> Any:
    if isinstance(grad, tf.IndexedSlices):  # an embedding's, in which a row may occur several times
        rows, places = tf.unique(grad.indices)
        grad = tf.math.unsorted_segment_sum(grad.values, places, tf.size(rows))
    return tf.reduce_sum(tf.square(tf.cast(grad, tf.float32)))


def loss_scale(optimizer: Any) -> Any:
    """The factor by which the optimizer scales the loss, against float16's underflow; 1 if it does not."""
    is_scaling = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    return tf.convert_to_tensor(optimizer.dynamic_scale if is_scaling else 1.0)
