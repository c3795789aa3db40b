"""Builds the models to train: the built-in ones, `keras.applications`, and the user's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gpubalance.engine import precision
from gpubalance.engine.user_functions import user_function
from gpubalance.errors import BadInput
from gpubalance.settings.choices import SAVED_MODEL, refuse_name, refuse_unknown_model
from gpubalance.settings.settings import Settings
from gpubalance.text import clean


def make_model(settings: Settings, *, takes_data: bool = True) -> Any:
    """The model. Call it in the scope for its variables.

    Raises BadInput if it can't be trained here; its remedy has `--data` only if the command
    `takes_data`. An error in the user's own code passes through unchanged, so that its own
    traceback is shown.
    """
    name = settings.model
    model = _maker(name)()
    if not isinstance(model, keras.Model):
        gave = f"--model {name} gave a value of type {type(model).__name__}"
        raise BadInput(f"{gave}, not a Keras model", remedy="return a Keras model there")
    own = "give samples of your own, --data FILE.py:FUNCTION, or " if takes_data else ""
    problem = next(_problems(model, needs_shapes=settings.data is None, own=own), None)
    if problem:
        raise BadInput(f"--model {name}{problem[0]}", remedy=problem[1])
    _refuse_another_precision(model, settings)
    return model


def _refuse_another_precision(model: Any, settings: Settings) -> None:
    """Raises BadInput for a model with another policy: one that the user's code sets, or that was
    saved with it.
    """
    own = precision.of(model)
    if own not in (None, settings.precision):
        raise BadInput(
            f"--model {settings.model} trains in {own}, and is measured in {settings.precision}",
            remedy=f"--precision {own} measures what it trains in",
        )


def _maker(name: str) -> Callable[[], Any]:
    """The function that makes the model of that name, whose import may build one. Raises BadInput
    if there is none.
    """
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    refuse_name("--model", name)
    if ":" in name:
        return user_function(name, "--model")
    if name.lower().endswith(SAVED_MODEL):
        return lambda: _saved_model(Path(name))
    applications = {n: f for n, f in vars(keras.applications).items() if inspect.isfunction(f)}
    refuse_unknown_model(name, applications)
    return lambda: applications[name](weights=None)


def probe_model() -> Any:
    """A deliberately heavy classifier of 28×28×1 images: 78.9 M parameters, about 4 GFLOP forward a
    sample.
    """
    return _vgg("probe", (32, 64, 128, 256), (512,) * 4, (2048,) * 5 + (1024,))


def small_model() -> Any:
    """The probe model's structure with under a ten-thousandth of its work, so that a profile's pace
    sets the time.

    It trains with SGD: Adam's update, traced for each weight on each device, would be three
    quarters of the start.
    """
    model = _vgg("small", (1, 1, 1, 1), (2,) * 4, (8,) * 5 + (8,), keras.layers.AveragePooling2D(4))
    model.optimizer = keras.optimizers.SGD()
    return model


def _vgg(
    name: str, first: tuple[int, ...], second: tuple[int, ...], dense: tuple[int, ...], *before: Any
) -> Any:
    layers = keras.layers

    def convolved(counts: tuple[int, ...]) -> list[Any]:
        made = [layers.Conv2D(filters, 3, padding="same", activation="relu") for filters in counts]
        return [*made, layers.MaxPooling2D(2)]

    body = [*convolved(first), *convolved(second), layers.Flatten()]
    body += [layers.Dense(units, activation="relu") for units in dense]
    # The probabilities stay in float32 under mixed precision, as a loss in float16 is inaccurate.
    last = layers.Dense(10, activation="softmax", dtype="float32")
    return keras.Sequential([layers.Input((28, 28, 1)), *before, *body, last], name=name)


_BUILT_IN = {"probe": probe_model, "small": small_model}


def _saved_model(path: Path) -> Any:
    """Loads a saved model. Raises BadInput for a file that is not there or that Keras' safe mode
    refuses.
    """
    if not path.is_file():
        raise BadInput(f"--model: there is no file {path}")
    try:
        return keras.saving.load_model(path, safe_mode=True)
    except Exception as error:  # noqa: BLE001  (Keras may raise anything)
        raise BadInput(
            f"--model {path} can't be loaded, with Keras' safe mode on: {clean(str(error), 400)}",
            remedy="give a function that builds it: file.py:function",
        ) from None


def input_shapes(model: Any) -> tuple[tuple[int | None, ...], ...] | None:
    """The shape of one sample of each input, None for an open dimension; None if the model does not
    say.
    """
    try:
        tensors = tf.nest.flatten(model.inputs or ())
    except (AttributeError, ValueError):  # a subclassed model, or a Sequential that is not built
        return None
    return tuple(tuple(tensor.shape[1:]) for tensor in tensors) or None


def facts_of(model: Any) -> dict[str, Any]:
    """What a result records about the model. `gradient_bytes` is what an all-reduce moves."""
    variables = model.trainable_variables
    sizes = [int(np.prod(v.shape)) for v in variables]
    return {
        "name": str(model.name),
        "parameters": sum(sizes),
        "gradient_bytes": sum(
            n * tf.as_dtype(v.dtype).size for n, v in zip(sizes, variables, strict=True)
        ),
        "input_shapes": input_shapes(model),
    }


def _problems(model: Any, *, needs_shapes: bool, own: str) -> Iterator[tuple[str, str]]:
    """Why a model can't be trained, and what to do: for random samples its shapes must be known."""
    inputs = tf.nest.flatten(getattr(model, "inputs", None) or ())
    if needs_shapes and not (model.built and inputs):
        begins = f"{own}return a functional or Sequential model that begins with an Input"
        yield ": its input shapes are unknown", begins
    for tensor in inputs:
        of_input, shape = f": input {tensor.name}", tuple(tensor.shape)
        if tf.as_dtype(tensor.dtype) == tf.string:
            yield f"{of_input} is text", "let it take numbers"
        if shape[0] is not None:
            remedy = "leave the batch open: keras.Input(shape) without batch_size"
            yield f"{of_input} takes batches of {shape[0]} only", remedy
        if needs_shapes and None in shape[1:]:
            sizes = (
                f"{own or 'give '}the Input its sizes: for random samples only the batch may be "
                "unknown"
            )
            yield f"{of_input} has the shape {shape}", sizes
    if model.built and not model.trainable_variables:
        yield " has no weights to train", "give it a layer with weights, such as Dense"
