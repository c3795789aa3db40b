"""Sums the gradients of micro-batches, one after the other.

A micro-batch's part of the loss is already divided by the *global* batch, so the sum over
micro-batches is exactly the gradient of the whole batch, as the sum over replicas is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine.step.vectors import batch_of
from gpubalance.errors import BadInput


def over_micro_batches(
    gradients: Callable[..., tuple[Any, Any]], data: Any, weights: Any, micro_batch: Any
) -> tuple[Any, list[Any]]:
    """The loss and the gradients of `data`, of which `micro_batch` samples are in memory at a time.

    `micro_batch` is an int32 scalar; if it does not divide the batch, the first micro-batch is the
    smaller one. It has the first of the two `weights`, each other one the second. Gradients keep
    their form: None, dense or IndexedSlices.
    """
    batch = batch_of(data)
    count = -(-batch // micro_batch)
    first = batch - (count - 1) * micro_batch

    def part(index: Any, weight: Any) -> tuple[Any, Any]:
        end = first + index * micro_batch
        begin = tf.maximum(0, end - micro_batch)
        return gradients(
            tf.nest.map_structure(lambda values: values[begin:end], data), weight
        )

    def add(index: Any, total: Any, sums: Any) -> tuple[Any, Any, Any]:
        # A loop's body and a branch forget their device: a nested function would take another
        # replica's weights.
        with tf.device(loss.device):
            own_loss, grads = part(index, weights[1])
            pairs = zip(sums, grads, strict=True)
            sums = tuple(_plus(summed, grad, index) for summed, grad in pairs)
            return index + 1, total + own_loss, sums

    # The first one is outside the loop, so that one micro-batch needs no second set of gradients in
    # memory.
    loss, grads = part(tf.constant(0), weights[0])
    start = tf.constant(1), loss, tuple(_first(grad, count) for grad in grads)
    before_last = tf.while_loop(
        lambda index, *_: index < count - 1, add, start, parallel_iterations=1
    )
    # A loop gives all its sums at its end. So the last one is outside, too: its gradients go to the
    # other replicas as they come.
    _, total, sums = tf.cond(count > 1, lambda: add(*before_last), lambda: before_last)
    return total, [
        _as_before(summed, grad) for summed, grad in zip(sums, grads, strict=True)
    ]


def _first(grad: Any, count: Any) -> tuple[Any, ...]:
    """The initial sum: the gradient itself, or arrays with room for `count` gradients' rows."""
    if grad is None:
        return ()
    if not isinstance(grad, tf.IndexedSlices):
        return (grad,)
    # Rows are not summed: Keras' Adam squares a row's gradients before it adds them, so it must get
    # each one.
    return _array_of(grad.values, count), _array_of(grad.indices, count)


def _array_of(first: Any, count: Any) -> Any:
    array = tf.TensorArray(
        first.dtype, count, element_shape=first.shape, infer_shape=False
    )
    return array.write(0, first)


def _plus(summed: tuple[Any, ...], grad: Any, index: Any) -> tuple[Any, ...]:
    """The sum after adding the gradient of micro-batch `index`."""
    if grad is None:
        return ()
    if not isinstance(grad, tf.IndexedSlices):
        return (summed[0] + grad,)
    values, indices = summed
    return values.write(index, grad.values), indices.write(index, grad.indices)


def _as_before(summed: tuple[Any, ...], grad: Any) -> Any:
    """The finished sum in the form of `grad`."""
    if grad is None:
        return None
    if not isinstance(grad, tf.IndexedSlices):
        return summed[0]
    values, indices = summed
    return tf.IndexedSlices(values.concat(), indices.concat(), grad.dense_shape)


def refuse_what_cannot_accumulate(model: Any) -> None:
    """Raises BadInput for synchronised batch normalisation.

    Replicas with different numbers of micro-batches can't meet in it.
    """
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized:
            raise BadInput(
                f"the model's layer {layer.name} synchronises batch normalisation, which "
                "micro-batches do not allow",
                remedy="leave out --micro-batches, or micro_batches= of a Split; "
                "or synchronized=False",
            )
