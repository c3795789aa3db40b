"""Marks: three numbers that stand for a quantity of a step; and the power that they tell.

They are the quantity's norm, and its products with two fixed vectors of random numbers, which add
up as the quantity's values do. Arrays of marks have them in the last axis: [..., 3].
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import tensorflow as tf

from gpubalance.results.decomposition import MEAN, MEAN_AGAIN, SUM

# Each of several quantities may also be apart by this part of what all together may be.
OF_ALL = 0.1
SCOPE = "parity_marks"  # of the operations that make them
_SEEDS = (1, 2)  # of the two vectors


def marks_of(values: Iterable[Any]) -> Any:
    """The marks of these tensors: float32 [values, 3]."""
    with tf.name_scope(SCOPE):
        return tf.reshape([_marks(value) for value in values], (-1, 1 + len(_SEEDS)))


def _marks(value: Any) -> Any:
    # Each row in its place, which other samples would give another order.
    if isinstance(value, tf.IndexedSlices):
        value = tf.math.unsorted_segment_sum(
            value.values, value.indices, value.dense_shape[0]
        )
    value = tf.cast(value, tf.float32)
    marks = [tf.norm(value)]
    for seed in _SEEDS:
        fixed = tf.random.stateless_normal(tf.shape(value), (seed, 0))
        marks.append(tf.reduce_sum(value * fixed))
    return tf.stack(marks)


def norms(marks: Any) -> Any:
    """The norms of quantities."""
    return marks[..., 0]


def products(marks: Any) -> Any:
    """Their products with the fixed vectors, in the last axis."""
    return marks[..., 1:]


def powers_of(
    whole: Any,
    parts: Sequence[tuple[float, Any]],
    near: float,
    rounding: Any = 0.0,
) -> list[int]:
    """The powers with which the parts make the whole, as in `Decomposition`, a mean's first.

    A part is its weight and its marks. They agree within `near` of the largest norm and what
    `rounding` may change, and of several quantities within a little of all together. What is 0
    everywhere has all powers.
    """
    part_norms = [norms(marks) for _, marks in parts]
    largest = reduce(np.maximum, part_norms, norms(whole))
    within = near * largest + rounding
    if whole.ndim > 1:
        within = within + OF_ALL * near * np.linalg.norm(norms(whole))
    powers = []
    for power in (MEAN, SUM, MEAN_AGAIN):
        made = sum(weight**power * marks for weight, marks in parts)
        if np.all(np.abs(products(made - whole)) <= within[..., None]):
            powers.append(power)
    return powers
