"""Tries the losses of a model that is cut over several devices in parts of a batch: its micro-batches' are averaged."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gpubalance.engine.step.own import is_keras_own, name_of
from gpubalance.engine.step.parity import NEITHER, TRIED
from gpubalance.engine.step.verdict import MEAN, SUM, power_of
from gpubalance.errors import BadInput

_NEAR = 1e-4


def check(model: Any, data: Any, micro_batch: int, losses: Callable[[Any], list[float]]) -> None:
    """Raises BadInput for a loss, or what layers add to it, that sums over the batch; warns of neither sum nor mean.

    `losses` gives the compiled loss of some samples, and then what layers add to it. At most a micro-batch is tried.
    """
    samples = int(tf.nest.flatten(data)[0].shape[0])
    count = min(TRIED, micro_batch, samples)
    cut, step = count // 4 or 1, samples // count
    reductions = {getattr(one, "reduction", None) for one in keras.tree.flatten(model._compile_loss._user_loss)}
    if count < 2:
        return

    def of(at: slice) -> Any:
        numbers = np.array(losses(tf.nest.map_structure(lambda one: one[: count * step : step][at], data)))
        return np.stack([abs(numbers), numbers, numbers], axis=1)

    whole, first, rest = of(slice(None)), of(slice(cut)), of(slice(cut, None))
    for place, marks in enumerate(whole):
        power = power_of(marks, [(cut / count, first[place]), (1 - cut / count, rest[place])], _NEAR)
        if power != MEAN and not (place == 0 and reductions == {"sum"}):
            _tell(model, of_layers=bool(place), is_sum=power == SUM)


def _tell(model: Any, *, of_layers: bool, is_sum: bool) -> None:
    given = keras.tree.flatten(model._compile_loss._user_loss)
    what, remedy = (
        f"the loss of the model {model.name} ({', '.join(map(name_of, given))})",
        "return a value for each sample",
    )
    if of_layers:
        own = [layer.name for layer in model._flatten_layers() if not is_keras_own(layer)]
        what = f"what layers of the model {model.name} add to its loss (own layers: {', '.join(own)})"
        remedy = "add_loss(ops.mean(loss))"
    if is_sum:
        raise BadInput(
            f"{what} sums over the batch and returns one number, which is taken for a mean when a batch is divided (a "
            "sum divided by a fixed number is one, too)",
            remedy=remedy,
        )
    warnings.warn(f"{what} is {NEITHER}", stacklevel=4)
