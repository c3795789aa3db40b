"""A split's scope: a model made in it trains over the split's devices by its own `fit`."""

from __future__ import annotations

import functools
import inspect
import tempfile
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine.keras_patches import (
    CREATE_VARIABLE,
    OPTIMIZER_APPLY,
    of_training,
)
from gpubalance.engine.replacing import Method, act_always, acts_here, unmodified
from gpubalance.engine.step.state import metric_variables
from gpubalance.engine.user_functions import warn_user
from gpubalance.engine.users_errors import own_frames
from gpubalance.errors import BadInput
from gpubalance.training.keras_functions import trace_all_again

# A part of TensorFlow's error for gradients that are taken in a scope, but not in a replica.
_NO_REPLICA = "is not available outside the replica context"
LOOP_REMEDY = (
    "move the work on a batch into the model's train_step, compile the model in the "
    "scope, and call fit: gpubalance guide train has an example"
)
# Attributes that models get. The layers that had no variables yet when the model was compiled:
_UNBUILT = "_gpubalance_unbuilt"
# The split that a model was compiled for; a strategy may serve several splits of the same devices.
_SPLIT = "_gpubalance_split"
# Whether it was compiled with jit_compile=False
_WITHOUT_XLA = "_gpubalance_without_xla"
# Whether it was warned of once, because it was built outside the scope
_WARNED_OUTSIDE = "_gpubalance_warned_outside"
# What to use instead of Keras' methods for a batch, which give each device all of it
_INSTEAD = {
    "train_on_batch": "use fit, which shares it out with the model's train_step as "
    "its step",
    "test_on_batch": "use evaluate, which shares it out",
    "predict_on_batch": "it returns the outputs once per device; use predict, which "
    "shares it out",
}


class _Entered(threading.local):
    """By strategy the split whose scope this thread entered last: a strategy may serve several."""

    def __init__(self) -> None:
        self.splits: Any = weakref.WeakKeyDictionary()


_entered_here = _Entered()


class Scope:
    """The scope of a split's strategy; its error says where a training loop belongs instead.

    It can be entered again, unlike TensorFlow's: each entry is one of TensorFlow's scopes.
    """

    def __init__(self, split: Any) -> None:
        self._split = split
        self._entered: list[Any] = []

    def __enter__(self) -> Any:
        """Returns what TensorFlow's scope does. Raises BadInput inside that of other devices."""
        strategy = self._split.replicas.strategy
        refuse_inside_others(strategy)
        _entered_here.splits[strategy] = self._split
        # For `last_entered`, in a thread that has entered no scope
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
                "a training loop of your own was run in `with split.scope():`, where "
                "gradients "
                f"cannot be computed:\n{own_frames(error).rstrip()}",
                remedy=LOOP_REMEDY,
            ) from None


def last_entered(strategy: Any) -> Any:
    """The split of the strategy whose scope was entered last, in this thread if one was."""
    return _entered_here.splits.get(strategy) or getattr(strategy, "split", None)


def note_unbuilt(model: Any) -> None:
    """Notes, when the model is compiled, which of its layers have no variables yet."""
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
            remedy="un-indent it: in the scope, only build, load and compile the model",
        )
    elsewhere = _layer_elsewhere(model, strategy)
    optimizer = getattr(model, "optimizer", None)
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
    remedy = "build (or load) and compile it inside `with split.scope():`"
    if model._distribute_strategy is not strategy:
        what = f"the model {model.name} was built"
    elif elsewhere in getattr(model, _UNBUILT, ()):
        raise BadInput(
            f"the model {model.name} was compiled in this split's scope(), but called "
            f"or built outside it first: its layer {elsewhere} created its variables "
            "there",
            remedy="build the model anew. If you call it before fit, do so inside the "
            "scope: `with split.scope(): model(x[:1])`",
        )
    elif elsewhere is not None:
        what = f"the layer {elsewhere} of the model {model.name} was built, or first called,"
    elif getattr(inner, "_distribution_strategy", strategy) is not strategy:
        what = (
            f"the optimizer of the model {model.name} was made, or the model compiled,"
        )
        remedy = (
            "compile it again inside the scope, with a new optimizer: with "
            "split.scope(): model.compile(…)"
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


def own_metric_text(model: Any, strategy: Any) -> str:
    """The warning, in one process of several, of a metric outside the strategy's scope, or ''."""
    is_inside = strategy.extended.variable_created_in_scope
    for variable, metric in metric_variables(model):
        if not is_inside(variable.value):
            return (
                f"the metric {metric.name} of the model {model.name} was made outside "
                "split.scope(), so each process logs an epoch of its own samples alone: "
                "make it inside `with split.scope():`"
            )
    return ""


# Not the tracing lock, which a thread holds while its replicas' threads make variables
_creating = threading.RLock()
# The latest split of several devices, until a model is compiled for it or it is gone (then None).
_waiting: list[Callable[[], Any]] = []


def expect(split: Any) -> None:
    """Notes that a model should be compiled in the split's scope: `fit` warns of one outside."""
    take_over()
    _waiting[:] = [weakref.ref(split)]


@functools.cache
def take_over() -> None:
    """Replaces the methods of Keras' models, in every thread from now on.

    Other models than those of a split's scope, and those in training, get Keras' own.
    """
    methods = {
        "fit": _of_the_split,
        "evaluate": _of_the_split,
        "predict": _of_the_split,
        "train_on_batch": _of_each_device,
        "test_on_batch": _of_each_device,
        "predict_on_batch": _of_each_device,
        "compile": _compile_and_note,
        "compile_from_config": _load_and_note,
        "quantize": _quantize_in_scope,
        "save": _save_by_the_first,
        "save_weights": _save_by_the_first,
        "export": _save_by_the_first,
    }
    act_always(
        {Method.of_all(keras.Model, name): method for name, method in methods.items()}
    )
    saving_functions = (
        (keras.saving, "save_model"),
        (keras.saving, "save_weights"),
        (keras.models, "save_model"),
    )
    act_always(
        {
            Method.of_all(module, name): _save_by_the_first
            for module, name in saving_functions
            if hasattr(module, name)  # not every Keras has save_weights
        }
    )
    numbers = {"__int__": int, "__float__": float}
    act_always(
        {
            Method.of_all(keras.Variable, name): functools.partial(_number_of, kind)
            for name, kind in numbers.items()
        }
    )
    act_always({OPTIMIZER_APPLY: _apply_beside_the_split})
    act_always({CREATE_VARIABLE: _create_alone})


def _create_alone(create: Any, *arguments: Any, **options: Any) -> Any:
    """Makes a variable while no other thread does: two once got each other's initial values."""
    with _creating:
        return create(*arguments, **options)


def _number_of(kind: Callable[[Any], Any], keras_own: Any, variable: Any) -> Any:
    """A scalar variable of several devices as a number, as Keras gives one device's.

    Such are an optimizer's iterations and learning rate.
    """
    is_of_several = isinstance(variable.value, tf.distribute.DistributedValues)
    if is_of_several and variable.ndim == 0:
        return kind(variable.numpy())
    return keras_own(variable)


def _save_by_the_first(
    save: Any, model: Any, filepath: Any, *arguments: Any, **options: Any
) -> Any:
    """A `save` or `export` for several processes that train one model: the first one's files stay.

    The others must save too, as reading a metric's variables sums them over all processes. A
    function of keras.saving that a script imported by its name is not replaced.
    """
    split = getattr(model, _SPLIT, None)
    if split is None or split.is_first:
        return save(model, filepath, *arguments, **options)
    with tempfile.TemporaryDirectory() as folder:
        return save(
            model, str(Path(folder) / Path(filepath).name), *arguments, **options
        )


def _of_the_split(
    keras_method: Any, model: Any, *arguments: Any, **options: Any
) -> Any:
    """A model's `fit`, `evaluate` or `predict`, over the devices of its split if it has one."""
    latest = _split_here(model)
    if latest is not None:
        split = getattr(model, _SPLIT, latest)
        return split.call(keras_method, model, arguments, options)
    if acts_here(of_training(model, "train_function")):
        return keras_method(model, *arguments, **options)
    if keras_method.__name__ == "fit":
        _warn_outside(model)
    with unmodified():  # it may be called by a callback of another model's training
        return keras_method(model, *arguments, **options)


def _of_each_device(
    keras_method: Any, model: Any, *arguments: Any, **options: Any
) -> Any:
    """A method that Keras runs on each device with the whole batch: warns of that once."""
    split = _split_here(model)
    name = keras_method.__name__
    is_split = split is not None and len(split.devices) > 1
    if is_split and split.is_first and name not in split.warned:
        split.warned.add(name)
        warn_user(
            f"{name} gives every device the whole batch, so the split gains nothing: "
            f"{_INSTEAD[name]}"
        )
    return keras_method(model, *arguments, **options)


def _apply_beside_the_split(
    apply: Any, optimizer: Any, *arguments: Any, **options: Any
) -> Any:
    """An optimizer's `apply`: warns once if a training loop of the user's calls it on one device.

    Then an optimizer without variables raises BadInput: TensorFlow makes them only in the scope.
    """
    strategy = getattr(optimizer, "_distribution_strategy", None)
    split = getattr(strategy, "split", None)
    if split is None or tf.distribute.has_strategy() or len(split.devices) == 1:
        return apply(optimizer, *arguments, **options)
    what = "a training loop of your own applies gradients outside fit"
    if not optimizer.built:
        raise BadInput(
            f"{what}, with an optimizer from split.scope() that has no variables yet; "
            "outside the scope TensorFlow cannot create them",
            remedy=f"{LOOP_REMEDY}; or, to train on one device, call "
            "optimizer.build(model.trainable_variables) in split.scope() first",
        )
    if split.is_first and what not in split.warned:
        split.warned.add(what)
        warn_user(
            f"{what}: one device computes them from the whole batch, and {split} is "
            f"not used. To train with the split, {LOOP_REMEDY}"
        )
    return apply(optimizer, *arguments, **options)


def _compile_and_note(
    compile_: Any, model: Any, *arguments: Any, **options: Any
) -> None:
    compile_(model, *arguments, **options)
    given = inspect.signature(compile_).bind(model, *arguments, **options)
    asked = given.arguments.get("jit_compile", "auto")
    setattr(model, _WITHOUT_XLA, asked is False)
    split = _split_here(model)
    if split is not None:
        setattr(model, _SPLIT, split)
        note_unbuilt(model)
        _waiting.clear()


def _load_and_note(compile_from_config: Any, model: Any, config: Any) -> None:
    compile_from_config(model, config)
    # If it was compiled with "auto" and Keras chose no XLA, Keras has saved False.
    setattr(model, _WITHOUT_XLA, False)


def _quantize_in_scope(
    quantize: Any, model: Any, *arguments: Any, **options: Any
) -> None:
    """A model's `quantize`: its new variables belong on the devices of its split, if it has one."""
    if _split_here(model) is None:
        quantize(model, *arguments, **options)
        return
    with model._distribute_strategy.scope():
        quantize(model, *arguments, **options)
    trace_all_again(model)  # as Keras does: what was traced has the old weights


def uses_xla(model: Any, plan: Any) -> bool:
    """Whether a split with this plan, or None, trains the model with XLA.

    It does if the model was compiled with XLA, and if the plan was measured with XLA and the model
    was not compiled with jit_compile=False.
    """
    if model.jit_compile:
        return True
    return (
        plan is not None
        and plan.settings.xla
        and not getattr(model, _WITHOUT_XLA, False)
    )


def _warn_outside(model: Any) -> None:
    """Warns once of each model built outside the scope, while a split still waits for its model."""
    split = _waiting[0]() if _waiting else None
    if (
        split is None
        or not split.is_first
        or hasattr(model, _SPLIT)
        or hasattr(model, _WARNED_OUTSIDE)
        or model._distribute_strategy is not None
    ):
        return
    setattr(model, _WARNED_OUTSIDE, True)
    warn_user(
        f"the model {model.name} was built outside split.scope(), so it trains on one "
        f"device, not with {split}: build (or load) and compile it inside `with "
        "split.scope():`"
    )


def _split_here(model: Any) -> Any:
    """The split whose scope was entered last for the model's strategy, or None.

    A model has no strategy while a split trains it: the split then calls Keras' own methods.
    """
    strategy = getattr(model, "_distribute_strategy", None)
    if strategy is None:
        return None
    return last_entered(strategy)
