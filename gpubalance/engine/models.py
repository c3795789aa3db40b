"""Builds the models to train: the built-in ones, `keras.applications`, and the user's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine.user_functions import kind_of, user_function
from gpubalance.errors import BadInput
from gpubalance.settings.choices import SAVED_MODEL, UNSAFE_MODELS
from gpubalance.system.applications import refuse_unknown
from gpubalance.text import clean


def build_model(name: str, make: Callable[[], Any], *, known_shapes: bool = True) -> Any:
    """Makes the model of that name and checks it. Call it in the strategy's scope. Random samples need `known_shapes`.

    Raises BadInput if it can't be trained here. An error in the user's own code passes through unchanged, so that its
    own traceback is shown.
    """
    model = make()
    if not isinstance(model, keras.Model):
        raise BadInput(f"--model {name} gave {kind_of(model)}, not a Keras model", remedy="return a Keras model there")
    _check(name, model, known_shapes=known_shapes)
    return model


def find_model(name: str) -> Callable[[], Any]:
    """The function that makes the model of that name. Call it in the strategy's scope: importing a file may build one.

    Raises BadInput if there is no such model.
    """
    if name == "probe":
        return probe_model
    if name == "small":
        return small_model
    if ":" in name:
        return user_function(name, "--model")
    if name.lower().endswith((SAVED_MODEL, *UNSAFE_MODELS)):
        return lambda: _saved_model(Path(name))
    applications = {n: f for n, f in vars(keras.applications).items() if inspect.isfunction(f)}
    refuse_unknown(name, applications)
    return lambda: applications[name](weights=None)


def probe_model() -> Any:
    """A deliberately heavy classifier of 28×28×1 images: 78.9 M parameters, about 4 GFLOP forward a sample."""
    return _vgg("probe", (32, 64, 128, 256), (512,) * 4, (2048,) * 5 + (1024,))


def small_model() -> Any:
    """The probe model's structure with under a ten-thousandth of its work, so that a profile's pace sets the time."""
    return _vgg("small", (1, 1, 1, 1), (2,) * 4, (8,) * 5 + (8,), reduce_first=True)


def _vgg(
    name: str, first: tuple[int, ...], second: tuple[int, ...], dense: tuple[int, ...], *, reduce_first: bool = False
) -> Any:
    layers = keras.layers
    model = keras.Sequential(name=name)
    model.add(layers.Input((28, 28, 1)))
    if reduce_first:
        model.add(layers.AveragePooling2D(4))
    for filters in first:
        model.add(layers.Conv2D(filters, 3, padding="same", activation="relu"))
    model.add(layers.MaxPooling2D(2))
    for filters in second:
        model.add(layers.Conv2D(filters, 3, padding="same", activation="relu"))
    model.add(layers.MaxPooling2D(2))
    model.add(layers.Flatten())
    for units in dense:
        model.add(layers.Dense(units, activation="relu"))
    # The probabilities stay in float32 under mixed precision, as a loss in float16 is inaccurate.
    model.add(layers.Dense(10, activation="softmax", dtype="float32"))
    return model


def _saved_model(path: Path) -> Any:
    """Loads a saved model. Raises BadInput for another format, and for a file that Keras' safe mode refuses."""
    if path.suffix.lower() != SAVED_MODEL:
        raise BadInput(
            f"--model {path}: a file of that kind may hold code, which loading it would run",
            remedy=f"save it again: model.save('{path.stem}{SAVED_MODEL}'), or give a function that builds it",
        )
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
    """The shape of one sample of each input, None for an open dimension; None if the model does not say."""
    try:
        tensors = tf.nest.flatten(model.inputs or ())
    except (AttributeError, ValueError):  # a subclassed model, or a Sequential that is not built
        return None
    return tuple(tuple(tensor.shape[1:]) for tensor in tensors) or None


def _check(name: str, model: Any, *, known_shapes: bool) -> None:
    inputs = tf.nest.flatten(getattr(model, "inputs", None) or ())
    own = "give samples of your own, --data FILE.py:FUNCTION, or"
    if known_shapes and not (model.built and inputs):
        raise BadInput(
            f"--model {name}: its input shapes are unknown",
            remedy=f"{own} return a functional or Sequential model that begins with an Input",
        )
    for tensor in inputs:
        if tf.as_dtype(tensor.dtype) == tf.string:
            raise BadInput(f"--model {name}: input {tensor.name} is text", remedy="let it take numbers")
        if tensor.shape[0] is not None:
            raise BadInput(
                f"--model {name}: input {tensor.name} takes batches of {tensor.shape[0]} only",
                remedy="leave the batch open: keras.Input(shape) without batch_size",
            )
        if known_shapes and None in tuple(tensor.shape[1:]):
            raise BadInput(
                f"--model {name}: input {tensor.name} has the shape {tuple(tensor.shape)}",
                remedy=f"{own} the Input its sizes: for random samples only the batch may be unknown",
            )
    if model.built and not model.trainable_variables:
        raise BadInput(f"--model {name} has no weights to train", remedy="give it a layer with weights, such as Dense")
