"""A batch in micro-batches, one after the other: their gradients are summed before any other replica sees them.

A micro-batch's part of the loss is weighed by the *global* batch already, so the sum over micro-batches is exactly the
gradient of the whole batch, as the sum over replicas is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from gpubalance.errors import BadInput


def accumulated(
    gradients: Callable[..., tuple[Any, Any]], data: Any, global_batch: Any, micro_batch: Any
) -> tuple[Any, list[Any]]:
    """The loss and the gradients of `data` (inputs, labels), of which `micro_batch` samples are in memory at a time.

    `micro_batch`, an int32 scalar, divides the batch. Gradients that are IndexedSlices become dense; None stays None.
    """
    count = tf.shape(tf.nest.flatten(data)[0])[0] // micro_batch

    def part(index: Any) -> tuple[Any, Any]:
        first = index * micro_batch
        inputs, labels = tf.nest.map_structure(lambda values: values[first : first + micro_batch], data)
        return gradients(inputs, labels, global_batch)

    def add(index: Any, total: Any, sums: Any) -> tuple[Any, Any, Any]:
        # A loop's body forgets the device that it is built for, and with it whose weights a nested function takes.
        with tf.device(loss.device):
            own_loss, grads = part(index)
            return index + 1, total + own_loss, tuple(a + b for a, b in zip(sums, _dense(grads), strict=True))

    # The first one is outside the loop: a replica with one micro-batch has no second set of gradients in its memory.
    loss, grads = part(tf.constant(0))
    start = tf.constant(1), loss, _dense(grads)
    _, total, sums = tf.while_loop(lambda index, *_: index < count, add, start, parallel_iterations=1)
    summed = iter(sums)
    return total, [None if g is None else next(summed) for g in grads]


def _dense(grads: Sequence[Any]) -> tuple[Any, ...]:
    """Those that are there. An embedding's are of the rows that its samples hit, and each micro-batch hits others."""
    return tuple(tf.convert_to_tensor(g) for g in grads if g is not None)


def refuse_what_cannot_accumulate(model: Any) -> None:
    """Raises BadInput for synchronised batch normalisation: replicas that differ in micro-batches can't meet in it."""
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized:
            raise BadInput(
                f"the model's layer {layer.name} synchronises batch normalisation, which micro-batches can't",
                remedy="measure it without --micro-batches, or with synchronized=False",
            )
