"""The squared norms of gradients, from which the noise scale is estimated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine.step.points import batch_of


def squares_a_sample(grads: Sequence[Any], data: Any) -> Any:
    """‖h‖²/b of a part's gradients, weighed by its b samples' part of the global batch: a float32 scalar."""
    return _squared_norm(grads) / tf.cast(batch_of(data), tf.float32)


def with_norms(stamps: Any, squares: Any, summed: Sequence[Any], scale: Any) -> Any:
    """A replica's stamps, then its parts' Σ‖h‖²/b and the whole batch's ‖g‖², without the optimizer's loss scale."""
    norms = tf.stack([squares, _squared_norm(summed)])
    return tf.concat([stamps, tf.cast(norms, tf.float64) / tf.cast(scale, tf.float64) ** 2], axis=0)


def _squared_norm(grads: Sequence[Any]) -> Any:
    return tf.add_n([_squares(grad) for grad in grads if grad is not None] or [tf.constant(0.0)])


def _squares(grad: Any) -> Any:
    if isinstance(grad, tf.IndexedSlices):  # an embedding's, in which a row may occur several times
        rows, places = tf.unique(grad.indices)
        grad = tf.math.unsorted_segment_sum(grad.values, places, tf.size(rows))
    return tf.reduce_sum(tf.square(tf.cast(grad, tf.float32)))


def loss_scale(optimizer: Any) -> Any:
    """The factor by which the optimizer scales the loss, against float16's underflow; 1 if it does not."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return tf.convert_to_tensor(optimizer.dynamic_scale)
    return tf.constant(1.0)
