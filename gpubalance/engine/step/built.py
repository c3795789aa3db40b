"""A model as a step needs it: with all its variables, which the parity check leaves as they are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine.keras_patches import is_keras_own
from gpubalance.engine.replacing import tracing_lock
from gpubalance.engine.step.gradients import taking_gradients
from gpubalance.engine.step.part import part_of
from gpubalance.errors import BadInput

STATEFUL = (
    "is stateful: it keeps a state per sample of a batch, and a split divides the "
    "batch over devices"
)
STATELESS = (
    "use stateful=False, with windows long enough to need no earlier state; or train "
    "on one device"
)


def stateful_layers(model: Any) -> list[Any]:
    """The recurrent layers that keep a state from one batch to the next."""
    return [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.RNN) and layer.stateful
    ]


def check(model: Any, *, trains: bool) -> list[str]:
    """Warnings of what a split does otherwise than the model is set to.

    Its step is traced. Raises BadInput for a layer that keeps a state for each sample, or if the
    model `trains` without an optimizer.
    """
    for layer in stateful_layers(model):
        raise BadInput(
            f"the layer {layer.name} of the model {model.name} {STATEFUL}",
            remedy=STATELESS,
        )
    if trains and has_no_optimizer(model):
        raise no_optimizer(model)
    warnings = []
    if model.run_eagerly or tf.config.functions_run_eagerly():
        warnings.append(
            f"the model {model.name} is set to run eagerly, but with a split its steps "
            "are traced"
        )
    return warnings


def has_no_optimizer(model: Any) -> bool:
    """Whether the model is compiled, but not with an optimizer of its own."""
    return model.compiled and getattr(model, "optimizer", None) is None


def no_optimizer(model: Any) -> BadInput:
    """The error for a model to which the user, or its own `compile`, gave no optimizer."""
    if hasattr(model, "optimizer"):  # Keras' compile was called
        return BadInput(
            f"the model {model.name} was compiled without an optimizer",
            remedy='compile it with one: compile(optimizer="adam", …)',
        )
    return BadInput(
        f"the model {model.name} has no optimizer: its own compile method sets none",
        remedy="call super().compile(optimizer=...) there. A model with several "
        "optimizers trains on one device only",
    )


def weights_are_finite(model: Any) -> bool:
    """Whether all trained weights are numbers: else no batch tells anything of the step."""
    for variable in model.trainable_variables:
        if not tf.reduce_all(tf.math.is_finite(variable.value)):
            return False
    return True


def refuse_gradients_that_do_not_add_up(model: Any) -> None:
    """Raises BadInput for a layer that gives a variable's next value as its gradient."""
    for layer in model._flatten_layers():
        for variable in layer._trainable_variables:
            if variable.overwrite_with_gradient:
                raise BadInput(
                    f"the layer {layer.name} of the model {model.name} passes new "
                    f"values of its {variable.name} as gradients, as float8 does: a "
                    "split would add up the values from all parts of the batch",
                    remedy="train it on one device without micro-batches, or use "
                    "another precision and quantize the model afterwards",
                )


def build(model: Any, strategy: Any, data: Any, *, trains: bool) -> None:
    """Creates all variables of the model, its metrics and its optimizer, for batches like this."""
    with tracing_lock:
        _build(model, strategy, data, trains=trains)


def _build(model: Any, strategy: Any, data: Any, *, trains: bool) -> None:
    step = model.train_step if trains else model.test_step
    is_own = not is_keras_own(step)
    try:
        # Such a step may call layers only, of a model without a `call`.
        if not is_own or type(model).call is not keras.Model.call:
            with strategy.scope():
                model._symbolic_build(data_batch=data)
            return
    except Exception:
        if not is_own:
            raise  # of a user's own step the model's `call` may be for other data
    _build_by_step(step, model, strategy, data)


def _build_by_step(step: Any, model: Any, strategy: Any, data: Any) -> None:
    """Creates the variables that a user's own step uses; the model need not have a `call`."""
    tensors = tf.nest.map_structure(
        lambda values: None if values is None else tf.convert_to_tensor(values), data
    )
    if not _is_traced(step, model, strategy, tensors):
        # Layers have their values, and so gradients, when a stateless scope has ended.
        _trace(step, model, strategy, tensors)
    if model.optimizer is not None and not model.optimizer.built:
        with strategy.scope():
            model.optimizer.build(model.trainable_variables)


def _is_traced(step: Any, model: Any, strategy: Any, tensors: Any) -> bool:
    """Whether the step could be traced."""
    try:
        _trace(step, model, strategy, tensors)
    except Exception:  # noqa: BLE001 - whatever the user's code raises for layers without values
        return False
    return True


def _trace(step: Any, model: Any, strategy: Any, tensors: Any) -> None:
    """Runs a user's step in a graph that is dropped, which makes the variables that it uses."""
    replacements = taking_gradients(model) if model.optimizer else {}
    stateless = contextlib.ExitStack()
    try:
        stateless.enter_context(unchanged(model))
        with part_of(1.0, replacements, replicated=True):
            tf.compat.v1.wrap_function(lambda: step(tensors), [])
    finally:
        with strategy.scope():  # where it makes the variables
            stateless.close()


@contextlib.contextmanager
def unchanged(model: Any, values: Iterable[tuple[Any, Any]] = ()) -> Iterator[Any]:
    """Drops what is assigned to Keras variables in the block, also to a model's counters and seeds.

    Inside it variables have these `values`, if given; the scope that it yields has what was
    assigned.
    """
    # Keras would drop what layers add to the loss, too, if the scope did not collect it.
    with keras.StatelessScope(list(values), collect_losses=True) as scope:
        for variable in model.trainable_variables:
            # Keras takes such a weight from the scope alone
            if variable.regularizer is not None:
                scope.add_update((variable, variable.value))
        yield scope
