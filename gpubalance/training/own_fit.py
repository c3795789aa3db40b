"""Makes `fit`, `evaluate` and `predict` of a model that was compiled for a split run over the
split's devices.
"""

from __future__ import annotations

import functools
import tempfile
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from gpubalance.engine.users_lines import users_line

# The split that a model was compiled for; one strategy may serve several splits of the same
# devices.
_SPLIT = "_gpubalance_split"
# The latest split of several devices until a model is compiled for it; its reference gives None if
# it is gone.
_waiting: list[Callable[[], Any]] = []


def expect(split: Any) -> None:
    """Notes that a model should be compiled in the split's scope, so that `fit` warns of one built
    outside.
    """
    take_over()
    _waiting[:] = [weakref.ref(split)]


@functools.cache
def take_over() -> None:
    """Replaces the methods for models of a split's scope; other models, and those in training, get
    Keras' own.
    """
    for name in ("fit", "evaluate", "predict", "compile"):
        # In the class that defines the method: `load_model` compiles no model whose class overrides
        # `compile`.
        owner = next(kind for kind in keras.Model.__mro__ if name in vars(kind))
        setattr(owner, name, (_noted if name == "compile" else _of_the_split)(getattr(owner, name)))
    for name in ("save", "save_weights"):
        setattr(keras.Model, name, _by_the_first(getattr(keras.Model, name)))


def _by_the_first(save: Any) -> Any:
    """A `save` for several processes that train one model: all take part, and only the first one's
    file stays.

    The others must save too, as reading a metric's variables sums them over all processes.
    """

    @functools.wraps(save)
    def method(model: Any, filepath: Any, *arguments: Any, **options: Any) -> Any:
        split = getattr(model, _SPLIT, None)
        if split is None or split.is_first:
            return save(model, filepath, *arguments, **options)
        with tempfile.TemporaryDirectory() as folder:
            return save(model, str(Path(folder) / Path(filepath).name), *arguments, **options)

    return method


def _of_the_split(keras_method: Any) -> Any:
    @functools.wraps(keras_method)
    def method(model: Any, *arguments: Any, **options: Any) -> Any:
        latest = _split_here(model)
        if latest is None:
            if keras_method.__name__ == "fit":
                _tell_outside(model)
            return keras_method(model, *arguments, **options)
        return getattr(model, _SPLIT, latest).call(keras_method, model, arguments, options)

    return method


def _noted(compile_: Any) -> Any:
    @functools.wraps(compile_)
    def method(model: Any, *arguments: Any, **options: Any) -> None:
        compile_(model, *arguments, **options)
        split = _split_here(model)
        if split is not None:
            setattr(model, _SPLIT, split)
            _waiting.clear()

    return method


def _tell_outside(model: Any) -> None:
    """Warns once of a model built outside the scope, while a split still waits for its model."""
    split = _waiting[0]() if _waiting else None
    if split is None or hasattr(model, _SPLIT) or model._distribute_strategy is not None:
        return
    _waiting.clear()
    warnings.warn_explicit(
        f"the model {model.name} was built outside split.scope(), so it trains on one device, "
        f"not with {split}: "
        "build or load it and compile it in `with split.scope():`",
        UserWarning,
        *users_line(),
    )


def _split_here(model: Any) -> Any:
    """The split whose scope was entered last for the strategy that the model was built in; None
    without a split.

    A model has no strategy while a split trains it: the split then calls Keras' own methods.
    """
    return getattr(getattr(model, "_distribute_strategy", None), "split", None)
