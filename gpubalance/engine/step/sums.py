"""Sums gradients over micro-batches, one after the other, and then over replicas, and takes their
norms.

A micro-batch's part of the loss is already divided by the *global* batch, so the sum over
micro-batches is exactly the gradient of the whole batch, as the sum over replicas is. From squared
norms the noise scale is estimated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine.sources import has_fixed_rows
from gpubalance.errors import BadInput
from gpubalance.planning.packs import packs_of
from gpubalance.results.decomposition import SUM
from gpubalance.settings.choices import Gradients


def batch_of(inputs: Any) -> Any:
    """The number of samples, an int32 scalar."""
    return tf.shape(tf.nest.flatten(inputs)[0])[0]


def weighed(value: Any, weight: Any, power: Any) -> Any:
    """A part's share of a quantity, times its weight to that power: over all parts the shares sum
    to the whole's.
    """
    return (
        value
        if isinstance(power, int) and power == SUM
        else value * tf.cast(weight**power, value.dtype)
    )


def wide(dtype: Any) -> Any:
    """The dtype in which numbers of this one are weighed and summed: float64 for float64, else
    float32.
    """
    return tf.float64 if dtype == tf.float64 else tf.float32


def together(values: Sequence[Any]) -> Any:
    """The numbers of all these tensors in one vector, in the widest of their dtypes."""
    dtype = tf.float64 if any(value.dtype == tf.float64 for value in values) else tf.float32
    return tf.concat(
        [tf.zeros(0, dtype), *(tf.reshape(tf.cast(value, dtype), [-1]) for value in values)], axis=0
    )


def parted(vector: Any, shapes: Sequence[Any]) -> list[Any]:
    """A vector's parts, which have these shapes."""
    sizes = [math.prod(shape) for shape in shapes]
    return [
        tf.reshape(part, shape) for part, shape in zip(tf.split(vector, sizes), shapes, strict=True)
    ]


def over_replicas(values: Sequence[Any], pack_bytes: int = 0) -> list[Any]:
    """The sums of the replicas' values; None stays None. An infinity on one replica reaches all of
    them.

    They are summed in packs of that many bytes, the last values first, each pack as soon as all in
    it are there. A pack has one dtype, as TensorFlow makes one tensor of it. All replicas make the
    same packs in the same order.
    """
    context = tf.distribute.get_replica_context()
    there = [number for number, value in enumerate(values) if value is not None]
    summed: list[Any] = [None] * len(values)
    for pack in packs_of([_kind_and_bytes(values[number], number) for number in there], pack_bytes):
        numbers = [there[place] for place in pack]
        sums = context.all_reduce(
            tf.distribute.ReduceOp.SUM, [values[number] for number in numbers]
        )
        for number, total in zip(numbers, sums, strict=True):
            summed[number] = total
    return summed


def sent(grads: Sequence[Any], gradients: Gradients) -> list[Any]:
    """Gradients as they are sent to the other replicas: in full, or float32 as bfloat16, in which
    they are summed.
    """
    if gradients == "full":
        return list(grads)
    return [tf.cast(grad, tf.bfloat16) if _is_wide(grad) else grad for grad in grads]


def received(sums: Sequence[Any], grads: Sequence[Any]) -> list[Any]:
    """The sums in the types of a replica's own gradients."""
    return [
        total if grad is None else tf.cast(total, grad.dtype)
        for total, grad in zip(sums, grads, strict=True)
    ]


def _is_wide(grad: Any) -> bool:
    """Whether a gradient is dense and in float32."""
    return (
        tf.is_tensor(grad) and not isinstance(grad, tf.IndexedSlices) and grad.dtype == tf.float32
    )


def _kind_and_bytes(value: Any, number: int) -> tuple[Hashable, int]:
    """What a value can share a pack with, and its bytes. One of an unknown size shares none."""
    size = None if isinstance(value, tf.IndexedSlices) else value.shape.num_elements()
    return (number, 0) if size is None else (value.dtype, size * value.dtype.size)


class Rows:
    """A replica's gradients by rows. Those of positions are the same in each part of a batch, those
    of words are not.

    One device gets a row of each position, the sum over all samples, but a row for each occurrence
    of a word. Optimizers square and clip each row that they get.
    """

    def __init__(self) -> None:
        self._first: Sequence[Any] = ()

    def summable(self, grads: Sequence[Any]) -> list[Any]:
        """A part's gradients: those whose rows all parts have are dense, as then they add up row by
        row.
        """
        self._first = self._first or grads  # of micro-batches the others are inside a loop
        return [grad.values if has_fixed_rows(grad) else grad for grad in grads]

    def of_sum(self, sums: Sequence[Any]) -> list[Any]:
        """The sums over all parts as gradients by rows again."""
        return [
            tf.IndexedSlices(one, grad.indices, grad.dense_shape) if has_fixed_rows(grad) else one
            for one, grad in zip(sums, self._first, strict=True)
        ]


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
        return gradients(tf.nest.map_structure(lambda values: values[begin:end], data), weight)

    def add(index: Any, total: Any, sums: Any) -> tuple[Any, Any, Any]:
        # A loop's body and a branch forget their device: a nested function would take another
        # replica's weights.
        with tf.device(loss.device):
            own_loss, grads = part(index, weights[1])
            sums = tuple(
                _plus(summed, grad, index) for summed, grad in zip(sums, grads, strict=True)
            )
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
    return total, [_as_before(summed, grad) for summed, grad in zip(sums, grads, strict=True)]


def _first(grad: Any, count: Any) -> tuple[Any, ...]:
    """The initial sum: the gradient itself; for an embedding's, arrays with room for the rows of
    `count` gradients.
    """
    if not isinstance(grad, tf.IndexedSlices):
        return () if grad is None else (grad,)
    # Rows are not summed: Keras' Adam squares a row's gradients before it adds them, so it must get
    # each one.
    parts = grad.values, grad.indices
    rows = (
        tf.TensorArray(one.dtype, count, element_shape=one.shape, infer_shape=False)
        for one in parts
    )
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
    """Raises BadInput for synchronised batch normalisation: replicas with different micro-batches
    can't meet in it.
    """
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized:
            raise BadInput(
                f"the model's layer {layer.name} synchronises batch normalisation, which "
                "micro-batches do not allow",
                remedy=(
                    "leave out --micro-batches, or micro_batches= of a Split; or synchronized=False"
                ),
            )


def squared_norm(grads: Sequence[Any]) -> Any:
    """‖g‖² over all gradients: a float32 scalar."""
    return tf.add_n([_squares(grad) for grad in grads if grad is not None] or [tf.constant(0.0)])


def with_norms(stamps: Any, squares: Any, summed: Sequence[Any], scale: Any) -> Any:
    """A replica's stamps, then its parts' Σ‖h‖²/b and the whole batch's ‖g‖², without the
    optimizer's loss scale.
    """
    norms = tf.stack([squares, squared_norm(summed)])
    return tf.concat([stamps, tf.cast(norms, tf.float64) / tf.cast(scale, tf.float64) ** 2], axis=0)


def _squares(grad: Any) -> Any:
    if isinstance(grad, tf.IndexedSlices):  # an embedding's, in which a row may occur several times
        rows, places = tf.unique(grad.indices)
        grad = tf.math.unsorted_segment_sum(grad.values, places, tf.size(rows))
    return tf.reduce_sum(tf.square(tf.cast(grad, tf.float32)))


def loss_scale(optimizer: Any) -> Any:
    """The factor by which the optimizer scales the loss, against float16's underflow; 1 if it does
    not.
    """
    is_scaling = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    return tf.convert_to_tensor(optimizer.dynamic_scale if is_scaling else 1.0)
