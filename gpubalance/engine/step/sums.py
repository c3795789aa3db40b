"""Sums over replicas in a step, and the sketches by which the parity check compares sums of parts.

A sketch is three float32 numbers that stand for a quantity of any size, such as a weight's
gradient: its norm, and its products with two fixed random vectors. The products of parts add up as
the parts' values do. Arrays of sketches have the three numbers in their last axis: [..., 3].
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

# The third term of the tolerance in `matching_exponents` has this factor.
FRACTION_OF_ALL = 0.1
# The name scope of the operations that make sketches: rounding.py does not perturb these.
SKETCH_SCOPE = "parity_sketches"
_SEEDS = (1, 2)  # of the two random vectors


def over_replicas(values: Sequence[Any], pack_bytes: int = 0) -> list[Any]:
    """The sum over all replicas of each value; None stays None.

    A replica's step calls this while it is traced. Values are summed in packs: a pack is one
    all-reduce of about `pack_bytes` bytes. If `pack_bytes` is 0, all values of a dtype are one
    pack. A pack has one dtype, because TensorFlow makes one tensor of it. The last values are in
    the first pack. A pack is summed as soon as its values are computed. All replicas make the same
    packs in the same order. An infinity on one replica reaches all.
    """
    context = tf.distribute.get_replica_context()
    # The places in `values` that are not None.
    present = [place for place, value in enumerate(values) if value is not None]
    keys_and_bytes = [_pack_key_and_bytes(values[place], place) for place in present]
    sums: list[Any] = [None] * len(values)
    for indices in packs_of(keys_and_bytes, pack_bytes):  # in `present`
        places = [present[index] for index in indices]
        pack = [values[place] for place in places]
        totals = context.all_reduce(tf.distribute.ReduceOp.SUM, pack)
        for place, total in zip(places, totals, strict=True):
            sums[place] = total
    return sums


def _pack_key_and_bytes(value: Any, place: int) -> tuple[Hashable, int]:
    """A key, and the value's bytes. Only values with equal keys can share a pack.

    The key of a float32 weight's gradient is float32. A value of unknown size, such as
    IndexedSlices, is a pack of its own: its key is its place among all values.
    """
    size = None if isinstance(value, tf.IndexedSlices) else value.shape.num_elements()
    if size is None:
        return place, 0
    return value.dtype, size * value.dtype.size


def cast_to_send(grads: Sequence[Any], form: Gradients) -> list[Any]:
    """A replica's gradients in the dtypes in which they are sent and summed.

    The form `bf16` sends dense float32 as bfloat16. TensorFlow can't gather IndexedSlices of
    bfloat16, so these are always sent as float32.
    """
    cast = []
    for grad in grads:
        if isinstance(grad, tf.IndexedSlices):
            if grad.dtype == tf.bfloat16:
                grad = tf.cast(grad, tf.float32)
        elif form == "bf16" and grad is not None and grad.dtype == tf.float32:
            grad = tf.cast(grad, tf.bfloat16)
        cast.append(grad)
    return cast


def cast_back(sums: Sequence[Any], grads: Sequence[Any]) -> list[Any]:
    """The sums of gradients in the dtypes of the replica's own `grads`."""
    cast = []
    for total, grad in zip(sums, grads, strict=True):
        if grad is not None:
            total = tf.cast(total, grad.dtype)
        cast.append(total)
    return cast


def batch_of(inputs: Any) -> Any:
    """The number of samples, the first dimension of the first tensor: an int32 scalar."""
    return tf.shape(tf.nest.flatten(inputs)[0])[0]


def weighed(value: Any, weight: Any, weight_exponent: Any) -> Any:
    """`value` times weight^p, in the value's dtype: a part's share of the whole batch's quantity.

    The exponent p is 0, 1 or 2 (see combine_rules.py): an int, or in the parity check a float32
    scalar.
    """
    if isinstance(weight_exponent, int) and weight_exponent == SUM:
        return value  # weight^0 is 1
    return value * tf.cast(weight**weight_exponent, value.dtype)


def wide(dtype: Any) -> Any:
    """The dtype in which numbers are weighed and summed: float64 for float64, else float32."""
    return tf.float64 if dtype == tf.float64 else tf.float32


def one_vector(tensors: Sequence[Any]) -> Any:
    """All numbers of these tensors in order: float64 if one of them is, else float32."""
    is_wide = any(tensor.dtype == tf.float64 for tensor in tensors)
    dtype = tf.float64 if is_wide else tf.float32
    vectors = [tf.zeros(0, dtype)]
    for tensor in tensors:
        vectors.append(tf.reshape(tf.cast(tensor, dtype), [-1]))
    return tf.concat(vectors, axis=0)


def split_vector(vector: Any, shapes: Sequence[Any]) -> list[Any]:
    """Undoes `one_vector`: tensors of these shapes, in the vector's dtype. (-1,) takes the rest."""
    if not shapes:  # tf.split makes at least one piece
        return []
    sizes = [math.prod(shape) for shape in shapes]
    pieces = zip(tf.split(vector, sizes), shapes, strict=True)
    return [tf.reshape(piece, shape) for piece, shape in pieces]


def squared_norm(grads: Sequence[Any]) -> Any:
    """‖g‖² over all gradients: a float32 scalar."""
    squares = [_squares(grad) for grad in grads if grad is not None]
    return tf.add_n(squares or [tf.constant(0.0)])


def _squares(grad: Any) -> Any:
    # The gradient of an embedding: a row that occurs several times is summed before it is squared.
    if isinstance(grad, tf.IndexedSlices):
        rows, places = tf.unique(grad.indices)
        grad = tf.math.unsorted_segment_sum(grad.values, places, tf.size(rows))
    return tf.reduce_sum(tf.square(tf.cast(grad, tf.float32)))


def with_norms(stamps: Any, part_squares: Any, summed_grads: Any, scale: Any) -> Any:
    """A replica's 4 stamps, then Σ‖h‖²/b of its parts, then ‖g‖² of the whole batch: float64 [6].

    The optimizer multiplied the gradients h and g by the loss `scale`. So both squares are divided
    by scale².
    """
    squares = tf.stack([part_squares, squared_norm(summed_grads)])
    norms = tf.cast(squares, tf.float64) / tf.cast(scale, tf.float64) ** 2
    return tf.concat([stamps, norms], axis=0)


def loss_scale(optimizer: Any) -> Any:
    """The factor by which the optimizer scales the loss, against float16's underflow; else 1."""
    scale = 1.0
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        scale = optimizer.dynamic_scale
    return tf.convert_to_tensor(scale)


def sketches_of(tensors: Iterable[Any]) -> Any:
    """The sketches of these tensors: float32 [tensors, 3]."""
    with tf.name_scope(SKETCH_SCOPE):
        sketches = [_sketch(tensor) for tensor in tensors]
        return tf.reshape(sketches, (-1, 1 + len(_SEEDS)))  # also if there are none


def _sketch(value: Any) -> Any:
    # IndexedSlices are made dense. The order of their rows depends on the samples, and a sketch
    # must not depend on it.
    if isinstance(value, tf.IndexedSlices):
        value = tf.math.unsorted_segment_sum(
            value.values, value.indices, value.dense_shape[0]
        )
    value = tf.cast(value, tf.float32)
    numbers = [tf.norm(value)]
    for seed in _SEEDS:
        fixed = tf.random.stateless_normal(tf.shape(value), (seed, 0))
        numbers.append(tf.reduce_sum(value * fixed))
    return tf.stack(numbers)


def norms(sketches: Any) -> Any:
    """The norms of the quantities: [...] of [..., 3]."""
    return sketches[..., 0]


def products(sketches: Any) -> Any:
    """The quantities' products with the two random vectors: [..., 2] of [..., 3]."""
    return sketches[..., 1:]


def matching_exponents(
    whole: Any,
    parts: Sequence[tuple[float, Any]],
    relative_tolerance: float,
    rounding: Any = 0.0,
) -> list[int]:
    """The exponents p with which whole ≈ Σ weight^p · part.

    These p are tried, and returned, in the order 1 (a mean), 0 (a sum), 2 (a mean divided by the
    number of samples once more). A quantity that is 0 in the whole and in all parts satisfies every
    p.

    `parts` are pairs (weight, sketches). The batch may be cut into parts several times. A part has
    the same weight in each cut, and p must satisfy all cuts. Sketches are numpy arrays:

        of               `whole`            a part, one cut    a part, several cuts
        one quantity     [3]                [3]                [cuts, 3]
        several          [quantities, 3]    [quantities, 3]    [cuts, quantities, 3]

    A quantity's products in the whole and in the sum of its parts may differ by

        relative_tolerance · its largest norm, in the whole or a part
        + rounding, one number or one for each quantity
        + 0.1 · relative_tolerance · the norm of all quantities, if there are several.
    """
    part_norms = [norms(sketches) for _, sketches in parts]
    largest_norm = reduce(np.maximum, part_norms, norms(whole))
    tolerance = relative_tolerance * largest_norm + rounding
    if whole.ndim > 1:  # several quantities
        norm_of_all = np.linalg.norm(norms(whole))
        tolerance = tolerance + FRACTION_OF_ALL * relative_tolerance * norm_of_all
    exponents = []
    for exponent in (MEAN, SUM, MEAN_AGAIN):
        total = sum(weight**exponent * sketches for weight, sketches in parts)
        differences = np.abs(products(total - whole))
        if np.all(differences <= tolerance[..., None]):
            exponents.append(exponent)
    return exponents
