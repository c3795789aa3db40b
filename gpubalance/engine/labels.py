"""What a model that is not compiled is compiled with, and random labels that suit a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine.step.changes import is_keras_own
from gpubalance.text import clean

_NONE_SUITS = "its outputs do not tell what labels its train_step, loss and metrics take: random ones do not suit them"


@dataclass(frozen=True)
class Target:
    """One output's labels: their shape for one sample, and the number of classes (0: real numbers from 0 to 1)."""

    shape: tuple[int, ...]
    classes: int


def compile_for(model: Any, labels: Any = None) -> list[Target]:
    """Compiles a model with Adam and a loss that suits each output, or its labels: a tensor for each, in order.

    Returns the labels that suit its outputs; empty if some are given. Softmax outputs get sparse categorical
    cross-entropy, sigmoid ones the binary one, others squared error. The last layer's activation decides. Raises
    ValueError for an output of unknown shape, and for labels that suit no output.
    """
    outputs = model.outputs
    targets: list[Target] = []
    if labels is None:
        targets, losses = map(list, zip(*map(_fit_output, outputs), strict=True))
    elif len(labels) != len(outputs):
        raise ValueError(f"labels for {len(labels)} outputs, where the model has {len(outputs)}")
    else:
        losses = [_function_for(tensor, label) for tensor, label in zip(outputs, labels, strict=True)]
    model.compile(keras.optimizers.Adam(), as_outputs(model, losses), jit_compile=False)
    return targets


def as_outputs(model: Any, values: list[Any]) -> Any:
    """One value for each output, in the structure of the model's outputs."""
    if len(values) == 1:
        return values[0]
    return keras.tree.pack_sequence_as(model.output, values)


def random_targets(model: Any, suits: Callable[[list[Target]], bool]) -> list[Target]:
    """The labels of each output that a compiled model takes: by Keras' own losses, else the first that `suits`.

    Raises ValueError if none does.
    """
    outputs = model.outputs
    losses = [] if model._compile_loss is None else keras.tree.flatten(model._compile_loss._user_loss)
    are_known = all(isinstance(one, str) or is_keras_own(_function_of(one)) for one in losses)
    if is_keras_own(type(model).train_step) and are_known and len(losses) == len(outputs):
        return [_by_loss(loss, tensor) for loss, tensor in zip(losses, outputs, strict=True)]
    candidates = (
        [Target(tuple(tensor.shape[1:]), 0) for tensor in outputs],
        [_fit_output(tensor)[0] for tensor in outputs],
        [_classes(tensor) for tensor in outputs],
    )
    found = next(filter(suits, candidates), None)
    if found is None:
        raise ValueError(_NONE_SUITS)
    return found


def _by_loss(loss: Any, tensor: Any) -> Target:
    name = (loss if isinstance(loss, str) else getattr(loss, "name", None) or loss.__name__).lower()
    if "sparse" in name:
        return _classes(tensor)
    return Target(tuple(tensor.shape[1:]), 2 if "binary" in name else 0)


def _classes(tensor: Any) -> Target:
    return Target(tuple(tensor.shape[1:-1]), int(tensor.shape[-1] or 2))


def _function_of(loss: Any) -> Any:
    return getattr(loss, "fn", loss)


def try_labels(model: Any, labels: Any) -> None:
    """Traces a loss compiled as the model's with its outputs. Raises ValueError if Keras refuses the labels."""
    outputs, labels = (
        keras.tree.map_structure(lambda one: tf.TensorSpec([None, *one.shape[1:]], one.dtype), parts)
        for parts in (as_outputs(model, list(model.outputs)), labels)
    )
    own = model._compile_loss
    loss = type(own)(own._user_loss, own._user_loss_weights, output_names=own.output_names)
    try:
        tf.function(lambda *parts: loss(*parts), autograph=False).get_concrete_function(labels, outputs)
    except Exception as error:  # noqa: BLE001  (Keras and a user's loss may raise anything)
        told = clean(str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__, 300)
        raise ValueError(f"its labels do not fit the loss that the model was compiled with: {told}") from None


def _function_for(tensor: Any, label: Any) -> Any:
    """The loss for an output and its labels: labels that lack the output's last dimension are class numbers."""
    shape, given = tuple(tensor.shape[1:]), tuple(label.shape[1:])
    activation, fits = _activation(tensor), alike(given, shape)
    losses = keras.losses
    if activation == "softmax" and fits:
        return losses.CategoricalCrossentropy()
    if len(shape) and (shape[-1] or 0) > 1 and alike(given, shape[:-1]):
        return losses.SparseCategoricalCrossentropy(from_logits=activation != "softmax")
    if not fits:
        raise ValueError(f"labels of shape {given} a sample for the output {tensor.name}, whose shape is {shape}")
    return (losses.BinaryCrossentropy if activation == "sigmoid" else losses.MeanSquaredError)()


def alike(one: tuple[int | None, ...], other: tuple[int | None, ...]) -> bool:
    """Whether Keras makes two shapes equal: it adds or removes a last dimension of 1. None matches any size."""
    return any(_same(*pair) for pair in ((one, other), (one, (*other, 1)), ((*one, 1), other)))


def _same(one: tuple[int | None, ...], other: tuple[int | None, ...]) -> bool:
    return len(one) == len(other) and all(None in (a, b) or a == b for a, b in zip(one, other, strict=True))


def _fit_output(tensor: Any) -> tuple[Target, Any]:
    shape = tuple(tensor.shape[1:])
    if None in shape:
        raise ValueError(f"output {tensor.name} has the shape {tuple(tensor.shape)}: only the batch may be unknown")
    if not tf.as_dtype(tensor.dtype).is_floating:
        raise ValueError(f"output {tensor.name} is {tensor.dtype}: a loss needs real numbers")
    activation = _activation(tensor)
    if activation == "softmax" and shape and shape[-1] > 1:
        function = keras.losses.SparseCategoricalCrossentropy()
        return Target(shape[:-1], shape[-1]), function
    if activation == "sigmoid":
        return Target(shape, 2), keras.losses.BinaryCrossentropy()
    return Target(shape, 0), keras.losses.MeanSquaredError()


def _activation(tensor: Any) -> str:
    """The name of the activation behind an output: its layer's own, or that of an Activation or Softmax layer."""
    layer = tensor._keras_history.operation
    if isinstance(layer, keras.layers.Softmax):
        return "softmax"
    return getattr(getattr(layer, "activation", None), "__name__", "")
