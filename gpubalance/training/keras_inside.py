"""The Keras internals that only training uses, checked when they are used; see engine/keras_inside.py too."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter

from gpubalance.engine.batches import Batches
from gpubalance.errors import BadInput


def made_under(model: Any, strategy: Any, method: str) -> None:
    """Raises BadInput for a model that was built or compiled outside the strategy's scope, or is trained inside it."""
    if tf.distribute.has_strategy():
        raise BadInput(
            f"{method} was called inside `with split.scope():`",
            remedy="un-indent it: the scope is for building, loading and compiling the model",
        )
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


def batches(epochs: Any) -> Any:
    """Of Keras' iterator over epochs, one epoch's batches, for whose end the next epoch need not wait."""
    data = epochs._distributed_dataset
    if not isinstance(epochs.data_adapter, GeneratorDataAdapter):
        return Batches(data)
    # A generator is the same in all epochs, and two iterators must not ask it at once. Untuned, the old one ends soon.
    options = tf.data.Options()
    options.autotune.enabled = False
    return data.with_options(options)
