"""`model.fit`, `evaluate` and `predict` of a model that was compiled for a split: they are the split's."""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import keras

from gpubalance.engine.caller import users_line

# The split that a model was compiled for; one strategy may serve several splits of the same devices.
_SPLIT = "_gpubalance_split"
# The latest split of several devices, as long as no model has been compiled for it; nothing where it is gone.
_waiting: list[Callable[[], Any]] = []


def expect(split: Any) -> None:
    """A model is to be compiled in its scope: the `fit` of one that was built outside of it is told."""
    take_over()
    _waiting[:] = [weakref.ref(split)]


@functools.cache
def take_over() -> None:
    """From now on, for models of a split's scope. Other models, and those in training, keep Keras' own methods."""
    for name in ("fit", "evaluate", "predict", "compile"):
        # Where the method is defined: `load_model` compiles no model whose class has another `compile` than that.
        owner = next(kind for kind in keras.Model.__mro__ if name in vars(kind))
        setattr(owner, name, (_noted if name == "compile" else _of_the_split)(getattr(owner, name)))
    for name in ("save", "save_weights"):
        setattr(keras.Model, name, _by_the_first(getattr(keras.Model, name)))


def _by_the_first(save: Any) -> Any:
    """Of several processes that train a model all save it, and only the first one's file stays."""

    @functools.wraps(save)
    def method(model: Any, filepath: Any, *arguments: Any, **options: Any) -> Any:
        split = getattr(model, _SPLIT, None)
        if split is None or split.is_first:
            return save(model, filepath, *arguments, **options)
        from gpubalance.training.processes import apart

        with apart(filepath) as instead:
            return save(model, instead, *arguments, **options)

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
    """Warns once of a model on one device, where a split waits for its model. One in training has been compiled."""
    split = _waiting[0]() if _waiting else None
    if split is None or hasattr(model, _SPLIT) or model._distribute_strategy is not None:
        return
    _waiting.clear()
    warnings.warn_explicit(
        f"the model {model.name} was built outside split.scope(), so it trains on one device, not with {split}: "
        "build or load it and compile it in `with split.scope():`",
        UserWarning,
        *users_line(),
    )


def _split_here(model: Any) -> Any:
    """The split whose scope was entered last, of the strategy that the model was built for; None for no split's.

    A model has no strategy while a split trains it: then Keras' methods are what the split calls.
    """
    return getattr(getattr(model, "_distribute_strategy", None), "split", None)
