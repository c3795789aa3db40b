"""Whether the loss of a batch is made from those of its micro-batches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from gpubalance.engine.keras_patches import is_keras_own, losses_of, name_of
from gpubalance.engine.pipeline.micro_batches import reductions_of
from gpubalance.engine.step.findings import NEITHER
from gpubalance.engine.step.parity import TRIED_SAMPLES
from gpubalance.errors import BadInput
from gpubalance.training.warn import warn_user

# The losses of parts of a batch add up to the whole's if they differ by less than this part.
_NEAR = 1e-4


def check_loss(
    model: Any, samples: int, most: int, losses: Callable[[slice], Any]
) -> None:
    """Tries the loss of up to `most` of a batch's samples, and what layers add to it, in two parts.

    `losses` gives an array of the loss and of what each layer adds, for a slice of the samples.
    Raises BadInput for one that sums over the batch; warns of neither sum nor mean.
    """
    count = min(TRIED_SAMPLES, most, samples)
    if count < 2:
        return
    stride = samples // count
    cut = count // 4 or 1
    with uncounted(model):
        whole = losses(slice(0, count * stride, stride))
        first = losses(slice(0, cut * stride, stride))
        rest = losses(slice(cut * stride, count * stride, stride))
    near = _NEAR * np.max(np.abs([whole, first, rest]), axis=0)
    mean = (cut * first + (count - cut) * rest) / count
    is_mean = np.abs(mean - whole) <= near
    is_sum = np.abs(first + rest - whole) <= near
    is_summed = set(reductions_of(model._compile_loss)) == {"sum"}
    for place in np.flatnonzero(~is_mean):
        of_layers = bool(place)
        if of_layers or not is_summed:
            _refuse_or_warn(model, of_layers=of_layers, is_sum=bool(is_sum[place]))


def _refuse_or_warn(model: Any, *, of_layers: bool, is_sum: bool) -> None:
    if of_layers:
        names = [
            layer.name for layer in model._flatten_layers() if not is_keras_own(layer)
        ]
        what = f"what layers of the model {model.name} add to its loss (own layers: "
        remedy = "add_loss(ops.mean(loss))"
    else:
        names = list(map(name_of, losses_of(model._compile_loss)))
        what = f"the loss of the model {model.name} ("
        remedy = "return a value for each sample"
    what += f"{', '.join(names)})"
    if is_sum:
        raise BadInput(
            f"{what} sums over the batch and returns one number, which is taken for a mean when a "
            "batch is divided (a sum divided by a fixed number is one, too)",
            remedy=remedy,
        )
    warn_user(f"{what} is {NEITHER}")


@contextlib.contextmanager
def uncounted(model: Any) -> Iterator[None]:
    """Undoes what the compiled losses' means count inside the block; layers' metrics keep it."""
    loss = model._compile_loss
    before = {}
    for metric in loss.metrics:
        for variable in metric.variables:
            before[id(variable)] = tf.identity(variable.value)
    yield
    for metric in loss.metrics:  # the first loss made some
        for variable in metric.variables:
            variable.assign(before.get(id(variable), tf.zeros_like(variable.value)))
