"""Tries a user's own loss on a few samples: a split takes its parts for means over samples, which may be wrong."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gpubalance.errors import BadInput
from gpubalance.training import losses
from gpubalance.training.changes import has_no_call, is_keras_own, unchanged
from gpubalance.training.metrics import counting
from gpubalance.training.part import part_of

# Keras' losses whose value depends on all samples of a batch together; dice and tversky only by default.
_OF_A_BATCH = ("circle", "dice", "tversky")
_TRIED = 8  # samples: two parts of them are compared with the whole
_NEAR = 1e-5
_COPIES, _DRAWS = 8, 8  # of the samples, and how often, for a loss that draws random numbers
_PLAINLY = 0.01  # of a loss: no rounding or small constant beside a divisor
_CLEARLY = 1.7  # times as much: more than random numbers make of a mean
_ROUNDINGS = 10  # that are tolerated, in the type of the loss


def check(model: Any, batch: Any, share: int, predict: Callable[[Any], Any] | None = None) -> None:
    """Raises BadInput for a loss function that sums over the batch and returns one number.

    Warns of one that is neither a sum nor a mean over samples, as Dice's is over a batch. Takes no more samples than a
    device's `share`, but at least two: its memory may not hold more. `predict` gives the outputs for inputs of a model
    that is on several devices.
    """
    own = _names_of_own(model)
    x, y, _ = keras.utils.unpack_x_y_sample_weight(batch)
    count = _count(x, share)
    if not own or not count or has_no_call(model):
        return
    losses.take_over()
    few = _cut((x, y), _spread(x, count))
    # `predict` keeps its traces for later calls: traced in a stateless scope they would lack the model's state.
    try:
        with nullcontext() if predict else unchanged(model):
            outputs = predict(few[0]) if predict else model(few[0], training=False)
    except Exception:
        if is_keras_own(type(model).train_step):
            raise
        return  # its own `train_step` calls it with other data, and is tried as it is
    few = (*few, tf.nest.map_structure(tf.identity, outputs))
    what = f"the loss of the model {model.name} ({', '.join(own)})"
    remedy = "return a value for each sample; keras.losses.Loss with reduction='sum' sums them"
    _compare(lambda *some, times=1: _losses(model, _cut(few, *some), times), count, what, remedy)


def check_added(model: Any, batch: Any, share: int, added: Callable[[Any], list[Any]]) -> None:
    """Checks what the user's own layers add to the loss in the same way; `added` gives it for inputs."""
    own = [layer.name for layer in model._flatten_layers() if not is_keras_own(layer)]
    x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
    count = _count(x, share)
    if not own or not count:
        return
    few = _cut(x, _spread(x, count))
    what = f"what layers of the model {model.name} add to its loss (own layers: {', '.join(own)})"
    remedy = "add_loss(ops.mean(loss))"
    _compare(lambda *some, times=1: [added(_cut(few, *some)) for _ in range(times)], count, what, remedy)


def _count(x: Any, share: int) -> int:
    return min(_TRIED, max(2, share), int(tf.nest.flatten(x)[0].shape[0])) // 2 * 2


def _spread(x: Any, count: int) -> slice:
    """So many samples from all over the batch: its first ones may be of one kind."""
    step = int(tf.nest.flatten(x)[0].shape[0]) // count
    return slice(0, count * step, step)


def _compare(of: Callable[..., list[list[Any]]], count: int, what: str, remedy: str) -> None:
    """Refuses numbers that are sums over the samples; warns of others than means.

    They are those `of` some samples and of copies of them, as `_cut` takes them, so many `times` in a row.
    """
    whole, again = of(times=2)
    # Cut in two ways, as halves may happen to give what the whole gives.
    cuts = sorted({count // 2, max(1, count // 4)})
    in_parts = [(cut / count, of(slice(cut))[0], of(slice(cut, None))[0]) for cut in cuts]
    for at, loss in enumerate(whole):

        def copied(copies: int, times: int = 1, at: int = at) -> list[Any]:
            return [numbers[at] for numbers in of(slice(None), copies, times=times)]

        parts = [(part, first[at], second[at]) for part, first, second in in_parts]
        kind = _kind(loss, parts, copied) if _is_near(loss, again[at]) else _kind_of_random(copied)
        if kind == _SUM:
            raise BadInput(
                f"{what} sums over the batch and returns one number, which is taken for a mean when a batch is divided "
                "(a sum divided by a fixed number is one, too)",
                remedy=remedy,
            )
        if kind != _MEAN:
            warnings.warn(f"{what} is {kind}", stacklevel=3)


_MEAN, _SUM = "a mean", "a sum"
_NEITHER = (
    "not a mean over samples: the losses of a batch's parts are averaged, weighted by samples, so the result is not "
    "exactly that of one device"
)
_UNKNOWN = (
    "so it is not known whether it is a mean over samples, which a split takes it for; with a value for each sample it "
    "is exact"
)


def _kind(loss: Any, parts: Sequence[tuple[float, Any, Any]], copied: Callable[..., list[Any]]) -> str:
    if not any((loss, *(one for _, one, _ in parts))):
        return f"0 for the samples tried, {_UNKNOWN}"
    if all(_is_near(loss, part * one + (1 - part) * other, one, other) for part, one, other in parts):
        return _MEAN
    # Each copy of the samples adds as much to a sum, but nothing to a mean or a quotient of sums.
    try:
        (two,), (three,) = copied(2), copied(3)
    except tf.errors.InvalidArgumentError:  # outputs of pairs, as of each query and item of a batch, can't be copied
        return _NEITHER
    is_sum = abs(float(two - loss)) > _PLAINLY * abs(float(two)) and _is_near(three - two, two - loss, three)
    return _SUM if is_sum else _NEITHER


def _kind_of_random(copied: Callable[..., list[Any]]) -> str:
    many, one = ([float(loss) for loss in copied(copies, _DRAWS)] for copies in (_COPIES, 1))
    is_plain = all(abs(np.mean(draws)) > 2 * np.std(draws) for draws in (many, one))
    grown = sum(many) / sum(one) if is_plain else math.nan
    return _MEAN if 0 < grown < _CLEARLY else _SUM if grown > _COPIES / 2 else f"random, {_UNKNOWN}"


def _cut(data: Any, at: slice = slice(None), copies: int = 1) -> Any:
    return tf.nest.map_structure(lambda values: None if values is None else tf.concat([values[at]] * copies, 0), data)


def _names_of_own(model: Any) -> list[str]:
    """The names of losses that do not come with Keras, or depend on a batch as a whole there."""
    given = [] if model._compile_loss is None else keras.tree.flatten(model._compile_loss._user_loss)
    names = [
        _name(loss) for loss in given if loss is not None and (_is_own(loss) or _name(loss).lower() in _OF_A_BATCH)
    ]
    return names if type(model).compute_loss is keras.Model.compute_loss else [*names, "compute_loss"]


def _name(loss: Any) -> str:
    return loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)


def _is_own(loss: Any) -> bool:
    return not isinstance(loss, str) and not is_keras_own(loss)


def _losses(model: Any, data: Any, times: int = 1) -> list[list[Any]]:
    """The losses that are one number taken for a mean, and the total of a user's own `compute_loss`.

    They are computed `times` times in a row. Changes of Keras variables by that, counters and seeds too, are dropped.
    """
    found: list[list[Any]] = []
    x, y, y_pred = data
    with unchanged(model):
        for _ in range(times):
            with counting(model), part_of(1.0, whole=True, counts=False) as part:
                total = model._compute_loss(x=x, y=y, y_pred=y_pred, training=True)
            reductions = {reduction for reduction, _ in part.losses}
            numbers = [loss for reduction, loss in part.losses if reduction != "sum"]
            if type(model).compute_loss is not keras.Model.compute_loss and "sum" not in reductions:
                numbers.append(total)
            found.append([loss.numpy() for loss in map(tf.convert_to_tensor, numbers) if not loss.shape.rank])
    return found


def _is_near(one: Any, other: Any, *parts: Any) -> bool:
    """Whether values are equal up to rounding in the loss's type; the `parts` of a sum may be larger and cancel."""
    scale = max((one, *parts), key=abs)
    rounding = float(np.finfo(one.dtype.type if one.dtype != tf.bfloat16 else np.float16).eps)
    return abs(float(one) - float(other)) <= max(_NEAR, _ROUNDINGS * rounding) * abs(float(scale)) + 1e-9
