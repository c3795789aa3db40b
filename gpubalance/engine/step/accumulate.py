"""Takes a batch in micro-batches, one after the other, and sums their gradients before the sum over replicas.

A micro-batch's part of the loss is already divided by the *global* batch, so the sum over micro-batches is exactly the
gradient of the whole batch, as the sum over replicas is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from gpubalance.errors import BadInput


def accumulated(
    gradients: Callable[..., tuple[Any, Any]], data: Any, global_batch: Any, micro_batch: Any
) -> tuple[Any, list[Any]]:
    """The loss and the gradients of `data`, of which `micro_batch` samples are in memory at a time.

    `micro_batch` is an int32 scalar; if it does not divide the batch, the first micro-batch is the smaller one.
    Gradients keep their form: None, dense or IndexedSlices.
    """
    batch = tf.shape(tf.nest.flatten(data)[0])[0]
    count = -(-batch // micro_batch)
    first = batch - (count - 1) * micro_batch

    def part(index: Any) -> tuple[Any, Any]:
        end = first + index * micro_batch
        begin = tf.maximum(0, end - micro_batch)
        return gradients(tf.nest.map_structure(lambda values: values[begin:end], data), global_batch)

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
    if grad is None:
        return ()
    if not isinstance(grad, tf.IndexedSlices):
        return (grad,)
    # Rows are not summed: Keras' Adam squares a row's gradients before it adds them, so it must get each one.
    return tuple(
        tf.TensorArray(part.dtype, size=count, element_shape=part.shape, infer_shape=False).write(0, part)
        for part in (grad.values, grad.indices)
    )


def _plus(summed: tuple[Any, ...], grad: Any, index: Any) -> tuple[Any, ...]:
    """The sum after adding the gradient of micro-batch `index`."""
    if isinstance(grad, tf.IndexedSlices):
        return tuple(rows.write(index, part) for rows, part in zip(summed, (grad.values, grad.indices), strict=True))
    return () if grad is None else (summed[0] + grad,)


def _as_before(summed: tuple[Any, ...], grad: Any) -> Any:
    """The finished sum in the form of `grad`."""
    if isinstance(grad, tf.IndexedSlices):
        values, indices = (rows.concat() for rows in summed)
        return tf.IndexedSlices(values, indices, grad.dense_shape)
    return None if grad is None else summed[0]


def refuse_what_cannot_accumulate(model: Any) -> None:
    """Raises BadInput for synchronised batch normalisation: replicas with different micro-batches can't meet in it."""
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized:
            raise BadInput(
                f"the model's layer {layer.name} synchronises batch normalisation, which micro-batches do not allow",
                remedy="leave out --micro-batches, or micro_batches= of a Split; or synchronized=False",
            )
