"""A split's scope; refuses what was not made in it, or is called in it."""

from __future__ import annotations

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


class Scope:
    """The scope of a split's strategy, which says where a training loop in it belongs."""

    def __init__(self, strategy: Any) -> None:
        self._scope = strategy.scope()

    def __enter__(self) -> Any:
        return self._scope.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Raises BadInput for gradients that were taken in the scope."""
        self._scope.__exit__(kind, error, traceback)
        if isinstance(error, ValueError) and _NO_REPLICA in str(error):
            raise BadInput(
                "a training loop of your own was run in `with split.scope():`, where no device "
                f"can take gradients:\n{own_frames(error).rstrip()}",
                remedy=LOOP_REMEDY,
            ) from None


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
