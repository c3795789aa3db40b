"""Whose code it is: Keras' own, of which it is known what it makes of parts of a batch, or the user's."""

from __future__ import annotations

from typing import Any

import keras

from gpubalance.engine.keras_inside import graph_of, nodes_in_order


def is_keras_own(thing: Any) -> bool:
    """Whether a function, or the class of a layer, metric or loss, comes with Keras."""
    of = thing if hasattr(thing, "__name__") else type(thing)
    return str(getattr(of, "__module__", "")).startswith("keras.")


def function_of(loss: Any) -> Any:
    """The function that one of Keras' losses was made of, else itself."""
    return getattr(loss, "fn", loss)


def name_of(loss: Any) -> str:
    """The name of a loss: of a user's function, or of a class."""
    if isinstance(loss, str):
        return loss
    of = loss.fn if type(loss).__name__ == "LossFunctionWrapper" else loss
    return str(getattr(of, "__name__", type(of).__name__))


def has_no_call(model: Any) -> bool:
    """Whether a model can't be called, only its layers, as its own `train_step` does."""
    return type(model).call is keras.Model.call


def users_parts(model: Any) -> list[str]:
    """The names of layers and losses with code of the user's, and of a graph's operations that mix samples."""
    layers = model._flatten_layers()
    graphs = (graph_of(layer) for layer in layers)
    nodes = [node for graph in graphs if graph is not None for node in nodes_in_order(graph)]
    operations = [node for node in nodes if not isinstance(node.operation, keras.Layer)]
    mixing = [one.operation.name for one in operations if any(to.shape[:1] != (None,) for to in one.output_tensors)]
    names = [layer.name for layer in layers if layer is not model and _is_users(layer)]
    return [*names, *mixing, *(["compute_loss"] if type(model).compute_loss is not keras.Model.compute_loss else [])]


def _is_users(layer: Any) -> bool:
    given = (getattr(layer, name, None) for name in ("activation", "activity_regularizer", "function"))
    return not all(is_keras_own(one) for one in (layer, *given) if one is not None)
