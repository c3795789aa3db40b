"""Refuses models that `layers` can't train over several devices, before anything is measured."""

from __future__ import annotations

from typing import Any, NoReturn

import keras

from gpubalance.engine.keras_inside import mask_of
from gpubalance.engine.step import built
from gpubalance.errors import Refused
from gpubalance.system.versions import numbers


def model(given: Any) -> None:
    """Raises BadInput for a model with its own step or loss, or with layers or a loss that micro-batches change."""
    for name in ("train_step", "test_step", "predict_step", "compute_loss"):
        if getattr(type(given), name) is not getattr(keras.Model, name):
            raise Refused(
                f"the model {given.name} has a {name} of its own, which runs all of its layers at once",
                remedy="layers train what a model was compiled with: compile(optimizer, loss)",
            )
    built.check(given, trains=True)
    for layer in given._flatten_layers():
        if numbers(keras.__version__) < (3, 14) and getattr(layer, "activity_regularizer", None):
            raise Refused(
                f"the layer {layer.name} has an activity regulariser, of which Keras {keras.__version__} takes the sum "
                "over a batch and not the mean",
                remedy="pip install 'keras>=3.14'",
            )
    if given.compiled:
        _compiled(given)


def _compiled(given: Any) -> None:
    if given.jit_compile:
        raise Refused(
            f"the model {given.name} is compiled with jit_compile=True, which is for one device",
            remedy='compile it with jit_compile=False; Keras saves True where "auto" took XLA on a GPU',
        )
    losses = losses_of(given._compile_loss)
    if not losses:
        raise Refused(
            f"the model {given.name} is compiled without a loss: what its layers add is not trained by itself",
            remedy="compile(optimizer, loss)",
        )
    reductions = set(reductions_of(given._compile_loss))
    if reductions == {"sum"}:
        return
    if any(mask_of(output) is not None for output in given.outputs):
        loss("what a mask leaves of a batch")
    if any(getattr(one, "ignore_class", None) is not None for one in losses):
        loss("what ignore_class leaves of a batch")
    if not reductions <= _MEANS:
        some = "samples for some outputs and not for others"
        loss(some if "sum" in reductions else "other than samples")


_MEANS = {"mean", "mean_with_sample_weight", "sum_over_batch_size"}


def loss(what: str) -> NoReturn:
    """Raises Refused for a loss that its micro-batches' losses do not add up to."""
    raise Refused(
        f"the model's loss divides by {what}, so its micro-batches do not add up to it",
        remedy="compile it with losses whose reduction is 'sum', or train it on one device",
    )


def reductions_of(compiled: Any) -> list[str | None]:
    """The reduction of each loss that a model was compiled with."""
    return [getattr(one, "reduction", "sum_over_batch_size") for one in losses_of(compiled)]


def losses_of(compiled: Any) -> list[Any]:
    """The losses that a model was compiled with."""
    return [one for one in keras.tree.flatten(getattr(compiled, "_user_loss", None)) if one is not None]
