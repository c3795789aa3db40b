"""Keras' losses over parts of a batch.

Every replica's loss is the mean over its own samples. When a `train_step` scales its loss, it is multiplied once by the
replica's weight in the global mean, so the replicas' gradients sum to those of one device with the whole batch. A loss
that divides by something other than samples (sample weights, what a mask leaves) is first brought to that form.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from keras.src.losses import loss as keras_loss

from gpubalance.engine.step.part import Part, Reduced, current, replaced
from gpubalance.errors import BadInput

# Keras divides a replica's loss by the number of replicas, and undoes that for the log: here it does neither.
_SCALING = ("scale_loss_for_distribution", "unscale_loss_for_distribution")
ORIGINALS: dict[str, Any] = {
    name: getattr(keras_loss, name, None) for name in ("apply_mask", "reduce_weighted_values", *_SCALING)
}
_call = keras_loss.Loss.__call__


@contextmanager
def weighing() -> Iterator[None]:
    """Makes Keras' losses weigh each replica's part inside the block."""
    scaling = {name: lambda value: value for name in _SCALING}
    with (
        replaced(keras_loss, reduce_weighted_values=_reduce_weighted_values, **scaling),
        replaced(keras_loss.Loss, __call__=_noted),
    ):
        yield


def _noted(loss: Any, *arguments: Any, **named: Any) -> Any:
    """Keras' own `Loss.__call__`, noting in the part which loss is being computed."""
    part = current.part
    if part is None:
        return _call(loss, *arguments, **named)
    part.calling.append(loss)
    try:
        return _call(loss, *arguments, **named)
    finally:
        part.calling.pop()


def _reduce_weighted_values(
    values: Any,
    sample_weight: Any = None,
    mask: Any = None,
    reduction: Any = "sum_over_batch_size",
    dtype: Any = None,
) -> Any:
    """Keras' own, changed so that its result times the part's `weight` is the replica's part of the global loss."""
    part = current.part
    loss = ORIGINALS["reduce_weighted_values"](values, sample_weight, mask, reduction, dtype)
    if part is None or part.whole or reduction in ("none", None):
        return loss
    loss = _share(part, loss, sample_weight, mask, reduction)
    if part.probing is not None and len(part.calling) == 1:
        part.probing.losses.append(Reduced(part.calling[0], values, loss))
    return loss


def _share(part: Part, loss: Any, sample_weight: Any, mask: Any, reduction: str) -> Any:
    by_weights = reduction == "mean_with_sample_weight" and sample_weight is not None
    if reduction == "sum" and len(part.calling) > 1:
        return loss  # the calling loss decides what becomes of it: a mean, or it is refused
    if reduction == "sum":
        own = 1.0
    elif mask is not None or by_weights:
        own = _part_of_the_sum(part, sample_weight if by_weights else None, mask)
    else:
        return loss
    return loss * tf.cast(own / part.weight, loss.dtype)


def _part_of_the_sum(part: Part, sample_weight: Any, mask: Any) -> Any:
    """This replica's fraction of the loss's divisor: of the samples that the mask leaves, or of the sample weights."""
    if part.micro:
        raise BadInput(
            "the model's loss divides by weights or a mask, which micro-batches do not have of the whole batch",
            remedy="Split(...) without micro_batches=, or a plan without: gpubalance balance --accumulate off",
        )
    merged = sample_weight if mask is None else ORIGINALS["apply_mask"](sample_weight, mask, "float32", "sum")
    own = tf.reduce_sum(tf.cast(merged, tf.float32))
    if part.probing is None:
        everyones = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, own)
    else:
        given = part.probing.divisors[len(part.probing.divided)]
        part.probing.divided.append(own)
        everyones = tf.where(given > 0, given, own)
    return tf.stop_gradient(tf.math.divide_no_nan(own, everyones))
