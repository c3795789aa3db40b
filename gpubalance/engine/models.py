"""The models to train: the built-in ones, `keras.applications`, and the user's own."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from gpubalance.errors import BadInput
from gpubalance.settings.choices import SAVED_MODEL, UNSAFE_MODELS
from gpubalance.text import clean


def build_model(name: str) -> Any:
    """The model of that name, built, with every dimension but the batch known. Call it in the strategy's scope.

    Raises BadInput when there is no such model or it can't be trained here. An error in the user's own code goes
    through as it is, so that its own traceback is shown.
    """
    model = _maker(name)()
    if not isinstance(model, keras.Model):
        raise BadInput(f"--model {name} gave a {type(model).__name__}, not a Keras model")
    return _check(name, model)


def probe_model() -> Any:
    """A deliberately heavy classifier of 28×28×1 images: 78.9 M parameters, about 4 GFLOP forward a sample."""
    return _vgg("probe", (32, 64, 128, 256), (512,) * 4, (2048,) * 5 + (1024,))


def small_model() -> Any:
    """The probe model's shape with under a ten-thousandth of its work, so that a profile's pace sets the time."""
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
    # The probabilities stay in float32 under mixed precision: a loss in float16 is not accurate.
    model.add(layers.Dense(10, activation="softmax", dtype="float32"))
    return model


def _maker(name: str) -> Callable[[], Any]:
    if name == "probe":
        return probe_model
    if name == "small":
        return small_model
    if ":" in name:
        return _user_function(name)
    if name.lower().endswith((SAVED_MODEL, *UNSAFE_MODELS)):
        return lambda: _saved_model(Path(name))
    application = getattr(keras.applications, name, None)
    if not inspect.isfunction(application):
        raise BadInput(
            f"there is no model {name!r}",
            remedy="use probe, small, a keras.applications name such as MobileNetV2, package.module:function, "
            "file.py:function or saved.keras",
        )
    return lambda: application(weights=None)


def _saved_model(path: Path) -> Any:
    """Raises BadInput for a file of another format, and for one that Keras' safe mode refuses."""
    if path.suffix.lower() != SAVED_MODEL:
        raise BadInput(
            f"--model {path}: a file of that kind may hold code, which loading it would run",
            remedy=f"save it again: model.save('{path.stem}{SAVED_MODEL}'), or give a function that builds it",
        )
    if not path.is_file():
        raise BadInput(f"--model: there is no file {path}")
    try:
        return keras.saving.load_model(path, safe_mode=True)
    except Exception as error:  # noqa: BLE001  (of what Keras raises nothing is promised)
        raise BadInput(
            f"--model {path} can't be loaded, with Keras' safe mode on: {clean(str(error), 400)}",
            remedy="give a function that builds it: file.py:function",
        ) from None


def _user_function(name: str) -> Callable[[], Any]:
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        raise BadInput(
            f"--model {name!r} names no function", remedy="write package.module:function or file.py:function"
        )
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    function = getattr(module, attribute, None)
    if not callable(function):
        names = [n for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__]
        raise BadInput(f"{place} has no function {attribute!r}", remedy=f"it has: {', '.join(names) or 'none'}")
    return function  # type: ignore[no-any-return]


def _load_file(path: Path) -> Any:
    if not path.is_file():
        raise BadInput(f"--model: there is no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None  # noqa: S101  (a path that ends in .py has a loader)
    assert spec.loader is not None  # noqa: S101
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # dataclasses and pickling look it up by its name
    sys.path.append(str(path.parent.resolve()))  # the modules beside it
    spec.loader.exec_module(module)
    return module


def _load_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise BadInput(f"--model: there is no module {name!r} on the path or in this folder") from None
        raise  # the user's module needs one that is missing: its own traceback tells


def _check(name: str, model: Any) -> Any:
    if not model.built or not getattr(model, "inputs", None):
        raise BadInput(
            f"--model {name}: its input shapes are unknown",
            remedy="return a functional or Sequential model that begins with an Input",
        )
    for tensor in tf.nest.flatten(model.inputs):
        if tf.as_dtype(tensor.dtype) == tf.string:
            raise BadInput(f"--model {name}: input {tensor.name} is text", remedy="let it take numbers")
        if tensor.shape[0] is not None:
            raise BadInput(
                f"--model {name}: input {tensor.name} takes batches of {tensor.shape[0]} only",
                remedy="leave the batch open: keras.Input(shape) without batch_size",
            )
        if None in tuple(tensor.shape[1:]):
            raise BadInput(
                f"--model {name}: input {tensor.name} has the shape {tuple(tensor.shape)}",
                remedy="only the batch may be unknown: give the Input its sizes",
            )
    if not model.trainable_variables:
        raise BadInput(f"--model {name} has no weights to train")
    return model
