"""Runs a model's `fit`, `evaluate` or `predict` over a split's devices."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from gpubalance.engine.batches import are_open, is_batched
from gpubalance.engine.caller import users_line
from gpubalance.engine.feed import Dealt
from gpubalance.engine.step import built
from gpubalance.engine.step.verdict import Verdict
from gpubalance.errors import BadInput
from gpubalance.training import data, regrouped
from gpubalance.training.keras_inside import made_under
from gpubalance.training.measured import another_step, unlike
from gpubalance.training.memory import out_of_memory
from gpubalance.training.processes import quiet

# What losses and metrics say of labels that are None.
_OF_NOTHING = re.compile("None values not supported|'NoneType' object")


def call(
    split: Any, keras_method: Callable[..., Any], model: Any, arguments: Sequence[Any], options: dict[str, Any]
) -> Any:
    """Calls Keras' own method or a subclass's over the split's devices. Raises what `Split.fit` does."""
    trains = keras_method.__name__ == "fit"
    _refuse_in_scope(keras_method.__name__)
    made_under(model, split._there().strategy)
    for text in built.check(model, trains=trains):
        warnings.warn(text, stacklevel=4)
    bound = _bound(split, keras_method, model, arguments, options)
    steps = split._steps_of(model)
    steps.end_together(keras_method.__name__, bound)

    given = bound.get("x")
    has_its_batches = isinstance(given, tf.data.Dataset) and regrouped.batch_of(given) == split.global_batch

    def on_first(dealt: Dealt) -> None:
        if trains:
            _tell(split, _of_another(split, model))
            if not (split._of_any_batch or has_its_batches):
                _tell(split, regrouped.other_batches(dealt.shares, split.global_batch))

    def on_tried(found: Verdict) -> None:
        for text in found.warned:
            _tell(split, text)
        if trains and split.plan is not None:
            _tell(split, another_step(split.plan, model, found.fingerprint, split._simulate))

    with steps.used(on_first, on_tried, data.sizes(bound)), warnings.catch_warnings():
        if bound.get("steps_per_epoch" if trains else "steps") is None:
            # A regrouped dataset does not know its length, so Keras warns when it ends.
            warnings.filterwarnings("ignore", message="Your input ran out of data")
        try:
            return keras_method(model, **bound)
        except tf.errors.ResourceExhaustedError as error:
            names = split._there().names
            raise out_of_memory(str(error), names, split.devices, split.shares, steps.tried, trains=trains) from error
        except (AttributeError, ValueError) as error:
            if not (_OF_NOTHING.search(str(error)) and data.lacks_labels(bound)):
                raise
            raise BadInput("the data has no labels (y)", remedy="give x and y, or a dataset of (x, y)") from error


def _bound(
    split: Any, keras_method: Callable[..., Any], model: Any, arguments: Sequence[Any], options: dict[str, Any]
) -> dict[str, Any]:
    """The arguments by name, with the data in the split's batches. Warns of what that changes."""
    trains = keras_method.__name__ == "fit"
    bound = inspect.signature(keras_method).bind(model, *arguments, **options).arguments
    bound.update(bound.pop("kwargs", {}))
    del bound["self"]
    if not split.is_first:
        quiet(bound)
    steps = bound.get("steps_per_epoch" if trains else "steps")
    data.check(bound, steps=steps, devices=len(split.devices), trains=trains)
    if trains:
        _tell(split, _of_another(split, model))
    if split._of_any_batch:
        data.check_batched(model, bound)
    else:
        given = bound.get("x")
        data.in_batches_of(split.global_batch, model, bound)
        is_other = bound.get("x") is not given and is_batched(given, model) and not are_open(given, model)
        if trains and is_other:
            _tell(split, regrouped.told(given, split.global_batch, steps))
    return bound


def _of_another(split: Any, model: Any) -> str:
    """The warning about a model that the plan was not measured with; empty before its variables exist."""
    if split.plan is None or not all(layer.built for layer in model._flatten_layers()):
        return ""
    return unlike(split.plan, model, split._simulate)


def _tell(split: Any, text: str) -> None:
    """Warns once of a text, at the user's line; of several processes only the first warns."""
    if text and split.is_first and text not in split._told:
        split._told.add(text)
        warnings.warn_explicit(text, UserWarning, *users_line())


def _refuse_in_scope(name: str) -> None:
    if tf.distribute.has_strategy():
        raise BadInput(
            f"{name} was called inside `with split.scope():`",
            remedy="un-indent it: the scope is for building, loading and compiling the model",
        )
