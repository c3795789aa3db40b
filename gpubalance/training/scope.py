"""A split's scope; refuses what was not made in it, or is called in it."""

from __future__ import annotations

import threading
import weakref
from types import TracebackType
from typing import Any

import tensorflow as tf

from gpubalance.engine.users_errors import own_frames
from gpubalance.errors import BadInput

# What TensorFlow says of gradients that are taken in a scope, and not by one of its replicas.
_NO_REPLICA = "is not available outside the replica context"
LOOP_REMEDY = (
    "put what it does with a batch into the model's train_step, compile the model in the scope, "
    "and call fit: gpubalance guide train has an example"
)


# The layers of a model that had no variables yet when it was compiled
_UNBUILT = "_gpubalance_unbuilt"


class _Entered(threading.local):
    """By strategy the split whose scope this thread entered last: a strategy may serve several."""

    def __init__(self) -> None:
        self.splits: Any = weakref.WeakKeyDictionary()


_entered_here = _Entered()


class Scope:
    """The scope of a split's strategy, which says where a training loop in it belongs.

    It can be entered again, unlike TensorFlow's: each entry is one of TensorFlow's scopes.
    """

    def __init__(self, split: Any) -> None:
        self._split = split
        self._entered: list[Any] = []

    def __enter__(self) -> Any:
        """Raises BadInput inside the scope of other devices."""
        strategy = self._split.replicas.strategy
        refuse_inside_others(strategy)
        _entered_here.splits[strategy] = self._split
        # For a model without a split, in a thread that has entered no scope
        strategy.split = self._split
        scope = strategy.scope()
        entered = scope.__enter__()
        self._entered.append(scope)
        return entered

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Raises BadInput for gradients that were taken in the scope."""
        self._entered.pop().__exit__(kind, error, traceback)
        if isinstance(error, ValueError) and _NO_REPLICA in str(error):
            raise BadInput(
                "a training loop of your own was run in `with split.scope():`, where no device "
                f"can take gradients:\n{own_frames(error).rstrip()}",
                remedy=LOOP_REMEDY,
            ) from None


def last_entered(strategy: Any) -> Any:
    """The split of the strategy whose scope was entered last, in this thread if one was."""
    return _entered_here.splits.get(strategy) or getattr(strategy, "split", None)


def note_unbuilt(model: Any) -> None:
    """Notes, as the model is compiled, which of its layers get their variables later."""
    layers = model._flatten_layers(include_self=False)
    setattr(
        model, _UNBUILT, frozenset(layer.name for layer in layers if not layer.built)
    )


def refuse_inside_others(strategy: Any) -> None:
    """Raises BadInput inside the scope of another strategy."""
    if tf.distribute.has_strategy() and tf.distribute.get_strategy() is not strategy:
        raise BadInput(
            "a split's scope was entered inside the scope of other devices",
            remedy="un-indent it",
        )


def refuse_another_scope(model: Any, strategy: Any, method: str) -> None:
    """Raises BadInput for a model from outside the strategy's scope, or a call inside it."""
    if tf.distribute.has_strategy():
        raise BadInput(
            f"{method} was called inside `with split.scope():`",
            remedy="un-indent it: the scope is for building, loading and compiling the model",
        )
    elsewhere = _layer_elsewhere(model, strategy)
    optimizer = getattr(model, "optimizer", None)
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
    remedy = "with split.scope(): build it, load it and compile it"
    if model._distribute_strategy is not strategy:
        what = f"the model {model.name} was built"
    elif elsewhere in getattr(model, _UNBUILT, ()):
        raise BadInput(
            f"the model {model.name} was compiled in this split's scope(), but first called or "
            f"built outside: there its layer {elsewhere} got its variables",
            remedy="make the model anew, and call it before fit in the scope only, "
            "with split.scope(): model(x[:1]), or not at all",
        )
    elif elsewhere is not None:
        what = f"the layer {elsewhere} of the model {model.name} was built, or first called,"
    elif getattr(inner, "_distribution_strategy", strategy) is not strategy:
        what = (
            f"the optimizer of the model {model.name} was made, or the model compiled,"
        )
        remedy = (
            "compile it again, with a new optimizer, in the scope: with split.scope(): "
            "model.compile(…)"
        )
    else:
        return
    raise BadInput(
        f"{what} outside this split's scope(): its variables are elsewhere",
        remedy=remedy,
    )


def _layer_elsewhere(model: Any, strategy: Any) -> str | None:
    """The name of a layer with variables outside the strategy's scope, if there is one."""
    for layer in model._flatten_layers(include_self=False):
        for variable in layer._trainable_variables + layer._non_trainable_variables:
            if not strategy.extended.variable_created_in_scope(variable.value):
                return str(layer.name)
    return None
