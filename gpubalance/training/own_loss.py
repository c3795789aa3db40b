"""A loss of the user's own, tried on a few samples: a split takes it for a mean over samples, and it may be none."""

from __future__ import annotations

import math
import warnings
from typing import Any

import keras
import tensorflow as tf

from gpubalance.errors import BadInput
from gpubalance.training.changes import is_keras_own
from gpubalance.training.metrics import counting
from gpubalance.training.part import part_of

_TRIED = 8  # samples, of which two halves are compared with the whole
_NEAR = 1e-5


def check(model: Any, batch: Any, share: int) -> None:
    """Raises BadInput for a loss function that sums over the batch and returns one number.

    Warns of one that is neither a sum nor a mean over samples, as Dice's is over a batch. Takes two samples, or as many
    as a device's `share` if that is more: its memory may not hold others.
    """
    own = _names_of_own(model)
    x, y, _ = keras.utils.unpack_x_y_sample_weight(batch)
    count = min(_TRIED, max(2, share), int(tf.nest.flatten(x)[0].shape[0])) // 2 * 2
    if not own or not count:
        return
    few = _cut((x, y), slice(count))
    few = (*few, tf.nest.map_structure(tf.identity, model(few[0], training=False)))
    parts = slice(None), slice(count // 2), slice(count // 2, None)
    whole, *halves = (_losses(model, *_cut(few, part)) for part in parts)
    for loss, first, second in zip(whole, *halves, strict=True):
        what = f"the loss of the model {model.name} ({', '.join(own)})"
        if _is_near(loss, (first + second) / 2):
            continue
        if _is_near(loss, first + second):
            raise BadInput(
                f"{what} sums over the batch and returns one number: a split takes that for a mean",
                remedy="return a value for each sample; keras.losses.Loss with reduction='sum' sums them",
            )
        warnings.warn(
            f"{what} is no mean over samples: the devices' are averaged by samples, so the result is not exactly that "
            "of one device",
            stacklevel=2,
        )


def _cut(data: Any, at: slice) -> Any:
    return tf.nest.map_structure(lambda values: None if values is None else values[at], data)


def _names_of_own(model: Any) -> list[str]:
    """The losses that do not come with Keras."""
    given = [] if model._compile_loss is None else keras.tree.flatten(model._compile_loss._user_loss)
    own = [loss for loss in given if not isinstance(loss, str | None) and not is_keras_own(loss)]
    names = [getattr(loss, "__name__", type(loss).__name__) for loss in own]
    return names if type(model).compute_loss is keras.Model.compute_loss else [*names, "compute_loss"]


def _losses(model: Any, x: Any, y: Any, y_pred: Any) -> list[float]:
    """What gives one number and is taken for a mean: losses, and the total of a `compute_loss` of the user's own."""
    with counting(model), part_of(1.0, whole=True, counts=False) as part:
        total = model._compute_loss(x=x, y=y, y_pred=y_pred, training=True)
    reductions = {reduction for reduction, _ in part.losses}
    found = [loss for reduction, loss in part.losses if reduction != "sum"]
    if type(model).compute_loss is not keras.Model.compute_loss and "sum" not in reductions:
        found.append(total)
    return [float(loss) for loss in found if not loss.shape.rank]


def _is_near(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_NEAR, abs_tol=1e-9)
