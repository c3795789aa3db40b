"""A part's numbers: how they are weighed, and many of them in one vector."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gpubalance.results.decomposition import SUM


def batch_of(inputs: Any) -> Any:
    """The number of samples, an int32 scalar."""
    return tf.shape(tf.nest.flatten(inputs)[0])[0]


def weighed(value: Any, weight: Any, power: Any) -> Any:
    """A part's share of a quantity: over all parts the shares sum to the whole's."""
    if isinstance(power, int) and power == SUM:
        return value
    return value * tf.cast(weight**power, value.dtype)


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
