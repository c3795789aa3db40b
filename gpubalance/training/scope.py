"""Refuses what was not made in a split's scope, or is called in it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from gpubalance.errors import BadInput


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
    elif elsewhere is not None:
        what = f"the layer {elsewhere} of the model {model.name} was built"
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
