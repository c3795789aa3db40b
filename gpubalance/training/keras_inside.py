"""The Keras internals that only training uses, checked when they are used; see engine/keras_inside.py too."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine.keras_inside import KNOWN
from gpubalance.errors import BadInput, EnvironmentFault
from gpubalance.training import losses, metrics
from gpubalance.training.changes import has_no_call, is_keras_own, unchanged
from gpubalance.training.gradients import taking_gradients
from gpubalance.training.part import part_of, replaced

_OF_MODELS = (
    "_compile_loss",
    "_compile_metrics",
    "_distribute_strategy",
    "_flatten_layers",
    "_loss_tracker",
    "_symbolic_build",
)


def take_over(model: Any) -> None:
    """Makes Keras' losses and metrics weigh each replica's part from now on.

    Raises EnvironmentFault for a Keras whose internals are not the known ones.
    """
    missing = [f"losses.{name}" for name, found in losses.ORIGINALS.items() if not callable(found)]
    missing += [] if callable(metrics.ORIGINAL) else ["metrics.reduce_to_samplewise_values"]
    missing += [f"Model.{name}" for name in _OF_MODELS if not hasattr(model, name)]
    if missing:
        raise EnvironmentFault(
            f"Keras {keras.__version__} has no {', '.join(missing)} where gpubalance expects it",
            remedy=f"use Keras {KNOWN}",
        )
    losses.take_over()
    metrics.take_over()


def made_under(model: Any, strategy: Any) -> None:
    """Raises BadInput for a model that was built or compiled outside the strategy's scope."""
    elsewhere = [
        layer.name
        for layer in model._flatten_layers(include_self=False)
        for variable in layer._trainable_variables + layer._non_trainable_variables
        if not strategy.extended.variable_created_in_scope(variable.value)
    ]
    if model._distribute_strategy is not strategy:
        what = f"the model {model.name} was built"
    elif elsewhere:
        what = f"the layer {elsewhere[0]} of the model {model.name} was built"
    elif _strategy_of(getattr(model, "optimizer", None), strategy) is not strategy:
        what = f"the optimizer of the model {model.name} was made, or the model compiled,"
    else:
        return
    raise BadInput(
        f"{what} outside this split's scope(): its variables are elsewhere",
        remedy="with split.scope(): build it, load it and compile it",
    )


def check(model: Any, *, trains: bool) -> None:
    """Raises BadInput for a layer that keeps a state for each sample, or if the model `trains` without an optimizer.

    Warns if the model does not run eagerly, or `trains` without XLA, although it is set to.
    """
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.RNN) and layer.stateful:
            raise BadInput(
                f"the layer {layer.name} of the model {model.name} is stateful: it keeps a state for each sample of a "
                "batch, of which a split gives each device a part",
                remedy="stateful=False, or one device",
            )
    if trains and model.compiled and getattr(model, "optimizer", None) is None:
        raise BadInput(
            f"the model {model.name} has no optimizer: its own compile does not set one",
            remedy="super().compile(optimizer=...) there; a model with several optimizers trains on one device",
        )
    if model.run_eagerly or tf.config.functions_run_eagerly():
        warnings.warn(
            f"the model {model.name} is set to run eagerly, which is for one device: with a split it is traced",
            stacklevel=4,
        )
    if trains and model.compiled and model.jit_compile:
        warnings.warn(
            f"the model {model.name} is compiled with jit_compile=True, which is for one device: with a split it "
            "trains without XLA",
            stacklevel=4,
        )


def _strategy_of(optimizer: Any, default: Any) -> Any:
    return getattr(getattr(optimizer, "inner_optimizer", optimizer), "_distribution_strategy", default)


@contextlib.contextmanager
def uncounted(model: Any) -> Iterator[None]:
    """Undoes what the compiled losses' means count inside the block; layers' own metrics keep what they count."""
    loss = model._compile_loss
    before = {id(variable): tf.identity(variable.value) for metric in loss.metrics for variable in metric.variables}
    yield
    for variable in (variable for metric in loss.metrics for variable in metric.variables):  # the first loss made some
        variable.assign(before.get(id(variable), tf.zeros_like(variable.value)))


def compiled(model: Any) -> list[Any]:
    """The objects that are replaced when the model is compiled again."""
    return [getattr(model, name, None) for name in ("optimizer", "_compile_loss", "_compile_metrics", "run_eagerly")]


def build(model: Any, strategy: Any, data: Any, *, trains: bool) -> None:
    """Creates all variables of the model, its metrics and its optimizer, for batches like this one."""
    name = "train_step" if trains else "test_step"
    is_own = not is_keras_own(getattr(type(model), name))
    try:
        if not (is_own and has_no_call(model)):
            with strategy.scope():
                model._symbolic_build(data_batch=data)
            return
    except Exception:
        if not is_own:
            raise  # of a user's own step the model's `call` may be for other data
    _build_by(getattr(model, name), model, strategy, data)


def _build_by(step: Any, model: Any, strategy: Any, data: Any) -> None:
    """Creates the variables that a user's own step uses, as on one device, where a model need not have a `call`."""
    given = tf.nest.map_structure(lambda one: None if one is None else tf.convert_to_tensor(one), data)
    for is_last in (False, True):  # layers have their values, and so gradients, when a stateless scope has ended
        stateless = contextlib.ExitStack()
        taking = taking_gradients(model) if model.optimizer else contextlib.nullcontext()
        try:
            stateless.enter_context(unchanged(model))
            with part_of(1.0, whole=True, tried=True), taking:
                tf.compat.v1.wrap_function(lambda: step(given), [])
        except Exception:
            if is_last:
                raise
        else:
            break
        finally:
            with strategy.scope():  # where it makes the variables
                stateless.close()
    if model.optimizer is not None and not model.optimizer.built:
        with strategy.scope():
            model.optimizer.build(model.trainable_variables)


def on_one_device(model: Any, **functions: Any) -> contextlib.AbstractContextManager[None]:
    """Makes Keras' `fit`, `evaluate` and `predict` handle whole batches, as on one device, with these functions."""
    return replaced(model, _distribute_strategy=None, **functions)
