"""Chooses a loss that fits a model's outputs, with labels for it or for labels that are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from gpubalance.text import clean


@dataclass(frozen=True)
class Target:
    """One output's labels: their shape for one sample, and the number of classes (0: real numbers from 0 to 1)."""

    shape: tuple[int, ...]
    classes: int


@dataclass(frozen=True)
class Loss:
    """The loss of every output, in the order of the model's flat outputs."""

    targets: tuple[Target, ...]
    functions: tuple[Any, ...]

    def sum(self, labels: Sequence[Any], outputs: Any, weights: Any = None) -> Any:
        """The sum over samples and outputs of the samples' losses, float32; a sample's is the mean over its positions.

        `weights`, if given, has a factor for each sample.
        """
        total = tf.zeros((), tf.float32)
        for function, label, output in zip(self.functions, labels, keras.tree.flatten(outputs), strict=True):
            if output.shape.rank == 1:  # Keras takes the mean over the last axis, which here is the batch
                label, output = label[:, None], output[:, None]
            of_samples = _of_samples(function(label, output))
            total += tf.reduce_sum(of_samples if weights is None else of_samples * _of_samples(weights))
        return total


def _of_samples(places: Any) -> Any:
    places = tf.cast(places, tf.float32)
    return tf.reduce_mean(tf.reshape(places, (tf.shape(places)[0], -1)), axis=1)


@dataclass(frozen=True)
class CompiledLoss:
    """The loss that the model was compiled with, which takes labels as the user's data has them."""

    function: Any

    def sum(self, labels: Any, outputs: Any, weights: Any = None) -> Any:
        """The sum over samples, float32, of a loss that is a mean over samples, as most are.

        Keras has divided it by the number of replicas, which is undone here.
        """
        mean = tf.cast(self.function(labels, outputs, weights), tf.float32)
        batch = tf.cast(tf.shape(keras.tree.flatten(outputs)[0])[0], tf.float32)
        return mean * batch * tf.distribute.get_strategy().num_replicas_in_sync


def fit_labels(model: Any, labels: Any) -> Loss | CompiledLoss:
    """The loss for these labels: what the model was compiled with, else what suits outputs and labels.

    Raises ValueError for labels that suit no output.
    """
    compiled = getattr(model, "_compile_loss", None)
    if compiled is not None:
        _try(compiled, model, labels)
        return CompiledLoss(compiled)
    if len(labels) != len(model.outputs):
        raise ValueError(f"labels for {len(labels)} outputs, where the model has {len(model.outputs)}")
    functions = [_function_for(tensor, label) for tensor, label in zip(model.outputs, labels, strict=True)]
    return Loss(targets=(), functions=tuple(functions))


def _try(compiled: Any, model: Any, labels: Any) -> None:
    """Traces a compiled loss with the model's outputs. Raises ValueError if Keras refuses the labels."""
    outputs, labels = (
        keras.tree.map_structure(lambda one: tf.TensorSpec([None, *one.shape[1:]], one.dtype), parts)
        for parts in (model.outputs[0] if isinstance(model, keras.Sequential) else model.output, labels)
    )
    try:
        tf.function(lambda *parts: compiled(*parts), autograph=False).get_concrete_function(labels, outputs)
    except Exception as error:  # noqa: BLE001  (Keras and a user's loss may raise anything)
        told = clean(str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__, 300)
        raise ValueError(f"its labels do not fit the loss that the model was compiled with: {told}") from None


def _function_for(tensor: Any, label: Any) -> Any:
    """The loss for an output and its labels: labels that lack the output's last dimension are class numbers."""
    shape, given = tuple(tensor.shape[1:]), tuple(label.shape[1:])
    activation, fits = _activation(tensor), alike(given, shape)
    losses = keras.losses
    if activation == "softmax" and fits:
        return losses.CategoricalCrossentropy(reduction=None)
    if len(shape) and (shape[-1] or 0) > 1 and alike(given, shape[:-1]):
        return losses.SparseCategoricalCrossentropy(from_logits=activation != "softmax", reduction=None)
    if not fits:
        raise ValueError(f"labels of shape {given} a sample for the output {tensor.name}, whose shape is {shape}")
    return (losses.BinaryCrossentropy if activation == "sigmoid" else losses.MeanSquaredError)(reduction=None)


def alike(one: tuple[int | None, ...], other: tuple[int | None, ...]) -> bool:
    """Whether Keras makes two shapes equal: it adds or removes a last dimension of 1. None matches any size."""
    return any(_same(*pair) for pair in ((one, other), (one, (*other, 1)), ((*one, 1), other)))


def _same(one: tuple[int | None, ...], other: tuple[int | None, ...]) -> bool:
    return len(one) == len(other) and all(None in (a, b) or a == b for a, b in zip(one, other, strict=True))


def fit_loss(model: Any) -> Loss:
    """Softmax outputs get sparse categorical cross-entropy, sigmoid ones the binary one, others squared error.

    The last layer's activation decides. Raises ValueError for an output of unknown shape.
    """
    pairs = [_fit_output(tensor) for tensor in model.outputs]
    return Loss(targets=tuple(t for t, _ in pairs), functions=tuple(f for _, f in pairs))


def _fit_output(tensor: Any) -> tuple[Target, Any]:
    shape = tuple(tensor.shape[1:])
    if None in shape:
        raise ValueError(f"output {tensor.name} has the shape {tuple(tensor.shape)}: only the batch may be unknown")
    if not tf.as_dtype(tensor.dtype).is_floating:
        raise ValueError(f"output {tensor.name} is {tensor.dtype}: a loss needs real numbers")
    activation = _activation(tensor)
    if activation == "softmax" and shape and shape[-1] > 1:
        function = keras.losses.SparseCategoricalCrossentropy(reduction=None)
        return Target(shape[:-1], shape[-1]), function
    if activation == "sigmoid":
        return Target(shape, 2), keras.losses.BinaryCrossentropy(reduction=None)
    return Target(shape, 0), keras.losses.MeanSquaredError(reduction=None)


def _activation(tensor: Any) -> str:
    """The name of the activation behind an output: its layer's own, or that of an Activation or Softmax layer."""
    layer = tensor._keras_history.operation
    if isinstance(layer, keras.layers.Softmax):
        return "softmax"
    return getattr(getattr(layer, "activation", None), "__name__", "")
