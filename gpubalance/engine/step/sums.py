"""Sums over replicas, in packs: their sizes, the numbers in them, and the form they are sent in.

They are the quantity's norm, and its products with two fixed vectors of random numbers, which add
up as the quantity's values do. Arrays of sketches have them in the last axis: [..., 3].
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from functools import reduce
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gpubalance.planning.sync import packs_of
from gpubalance.results.combine_rules import MEAN, MEAN_AGAIN, SUM
from gpubalance.settings.choices import Gradients

# Each of several quantities may also be apart by this part of what all together may be.
OF_ALL = 0.1
SCOPE = "parity_marks"  # of the operations that make them
_SEEDS = (1, 2)  # of the two vectors


def over_replicas(values: Sequence[Any], pack_bytes: int = 0) -> list[Any]:
    """The sums of the replicas' values; None stays None. An infinity on one replica reaches all.

    They are summed in packs of that many bytes, the last values first, each pack as soon as all in
    it are there. A pack has one dtype, as TensorFlow makes one tensor of it. All replicas make the
    same packs in the same order.
    """
    context = tf.distribute.get_replica_context()
    numbers = [number for number, value in enumerate(values) if value is not None]
    sizes = [_kind_and_bytes(values[number], number) for number in numbers]
    summed: list[Any] = [None] * len(values)
    for pack in packs_of(sizes, pack_bytes):
        in_pack = [values[numbers[place]] for place in pack]
        sums = context.all_reduce(tf.distribute.ReduceOp.SUM, in_pack)
        for place, total in zip(pack, sums, strict=True):
            summed[numbers[place]] = total
    return summed


def _kind_and_bytes(value: Any, number: int) -> tuple[Hashable, int]:
    """What a value can share a pack with, and its bytes. One of an unknown size shares none."""
    size = None if isinstance(value, tf.IndexedSlices) else value.shape.num_elements()
    if size is None:
        return number, 0
    return value.dtype, size * value.dtype.size


def sent(grads: Sequence[Any], gradients: Gradients) -> list[Any]:
    """Gradients in the form in which they are sent and summed: in full, or float32 as bfloat16.

    TensorFlow can't gather rows of bfloat16: they are sent as float32.
    """
    forms = []
    for grad in grads:
        if isinstance(grad, tf.IndexedSlices):
            if grad.dtype == tf.bfloat16:
                grad = tf.cast(grad, tf.float32)
        elif gradients != "full" and grad is not None and grad.dtype == tf.float32:
            grad = tf.cast(grad, tf.bfloat16)
        forms.append(grad)
    return forms


def received(sums: Sequence[Any], grads: Sequence[Any]) -> list[Any]:
    """The sums in the types of a replica's own gradients."""
    typed = []
    for total, grad in zip(sums, grads, strict=True):
        if grad is not None:
            total = tf.cast(total, grad.dtype)
        typed.append(total)
    return typed


def batch_of(inputs: Any) -> Any:
    """The number of samples, an int32 scalar."""
    return tf.shape(tf.nest.flatten(inputs)[0])[0]


def weighed(value: Any, weight: Any, weight_exponent: Any) -> Any:
    """A part's share of a quantity: over all parts the shares sum to the whole's."""
    if isinstance(weight_exponent, int) and weight_exponent == SUM:
        return value
    return value * tf.cast(weight**weight_exponent, value.dtype)


def wide(dtype: Any) -> Any:
    """The dtype in which numbers are weighed and summed: float64 for float64, else float32."""
    return tf.float64 if dtype == tf.float64 else tf.float32


def together(values: Sequence[Any]) -> Any:
    """The numbers of all these tensors in one vector, in the widest of their dtypes."""
    is_wide = any(value.dtype == tf.float64 for value in values)
    dtype = tf.float64 if is_wide else tf.float32
    vectors = [tf.zeros(0, dtype)]
    for value in values:
        vectors.append(tf.reshape(tf.cast(value, dtype), [-1]))
    return tf.concat(vectors, axis=0)


def parted(vector: Any, shapes: Sequence[Any]) -> list[Any]:
    """A vector's parts, which have these shapes."""
    if not shapes:  # TensorFlow splits into one part at least
        return []
    parts = tf.split(vector, [math.prod(shape) for shape in shapes])
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]


def squared_norm(grads: Sequence[Any]) -> Any:
    """‖g‖² over all gradients: a float32 scalar."""
    squares = [_squares(grad) for grad in grads if grad is not None]
    return tf.add_n(squares or [tf.constant(0.0)])


def _squares(grad: Any) -> Any:
    # An embedding's, in which a row may occur several times
    if isinstance(grad, tf.IndexedSlices):
        rows, places = tf.unique(grad.indices)
        grad = tf.math.unsorted_segment_sum(grad.values, places, tf.size(rows))
    return tf.reduce_sum(tf.square(tf.cast(grad, tf.float32)))


def with_norms(stamps: Any, squares: Any, summed: Sequence[Any], scale: Any) -> Any:
    """A replica's stamps, then its parts' Σ‖h‖²/b and the whole batch's ‖g‖².

    The optimizer's loss scale is taken out of both.
    """
    norms = tf.cast(tf.stack([squares, squared_norm(summed)]), tf.float64)
    return tf.concat([stamps, norms / tf.cast(scale, tf.float64) ** 2], axis=0)


def loss_scale(optimizer: Any) -> Any:
    """The factor by which the optimizer scales the loss, against float16's underflow; else 1."""
    scale = 1.0
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        scale = optimizer.dynamic_scale
    return tf.convert_to_tensor(scale)


def sketch_of(values: Iterable[Any]) -> Any:
    """The sketches of these tensors: float32 [values, 3]."""
    with tf.name_scope(SCOPE):
        return tf.reshape([_sketches(value) for value in values], (-1, 1 + len(_SEEDS)))


def _sketches(value: Any) -> Any:
    # Each row in its place, which other samples would give another order.
    if isinstance(value, tf.IndexedSlices):
        value = tf.math.unsorted_segment_sum(
            value.values, value.indices, value.dense_shape[0]
        )
    value = tf.cast(value, tf.float32)
    sketches = [tf.norm(value)]
    for seed in _SEEDS:
        fixed = tf.random.stateless_normal(tf.shape(value), (seed, 0))
        sketches.append(tf.reduce_sum(value * fixed))
    return tf.stack(sketches)


def norms(sketches: Any) -> Any:
    """The norms of quantities."""
    return sketches[..., 0]


def products(sketches: Any) -> Any:
    """Their products with the fixed vectors, in the last axis."""
    return sketches[..., 1:]


def weight_exponents_of(
    whole: Any,
    parts: Sequence[tuple[float, Any]],
    near: float,
    rounding: Any = 0.0,
) -> list[int]:
    """The powers with which the parts make the whole, as in `CombineRules`, a mean's first.

    A part is its weight and its sketches. They agree within `near` of the largest norm and what
    `rounding` may change, and of several quantities within a little of all together. What is 0
    everywhere has all powers.
    """
    part_norms = [norms(sketches) for _, sketches in parts]
    largest = reduce(np.maximum, part_norms, norms(whole))
    within = near * largest + rounding
    if whole.ndim > 1:
        within = within + OF_ALL * near * np.linalg.norm(norms(whole))
    weight_exponents = []
    for weight_exponent in (MEAN, SUM, MEAN_AGAIN):
        made = sum(weight**weight_exponent * sketches for weight, sketches in parts)
        if np.all(np.abs(products(made - whole)) <= within[..., None]):
            weight_exponents.append(weight_exponent)
    return weight_exponents
