"""The squared norms of gradients, from which the noise scale is estimated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf


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
