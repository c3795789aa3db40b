"""A loss that fits what a model puts out, and labels for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf


@dataclass(frozen=True)
class Target:
    """One output's labels: their shape without the batch, and the number of classes (0: real numbers from 0 to 1)."""

    shape: tuple[int, ...]
    classes: int


@dataclass(frozen=True)
class Loss:
    """The loss of every output, in the order of the model's flat outputs."""

    targets: tuple[Target, ...]
    functions: tuple[Any, ...]

    def sum(self, labels: Sequence[Any], outputs: Any) -> Any:
        """Σ over samples of the sample's loss, float32, over all outputs. A sample's loss is the mean of its places."""
        total = tf.zeros((), tf.float32)
        for function, label, output in zip(self.functions, labels, keras.tree.flatten(outputs), strict=True):
            if output.shape.rank == 1:  # Keras takes the mean over the last axis, which here is the batch
                label, output = label[:, None], output[:, None]
            places = tf.cast(function(label, output), tf.float32)
            total += tf.reduce_sum(tf.reduce_mean(tf.reshape(places, (tf.shape(places)[0], -1)), axis=1))
        return total


def fit_loss(model: Any) -> Loss:
    """Softmax outputs get sparse categorical cross-entropy, one sigmoid unit the binary one, others squared error.

    The last layer's activation tells what an output is. Raises ValueError for an output of unknown shape.
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
    """The name of the activation that made an output: of its layer, or of an Activation or Softmax layer."""
    layer = tensor._keras_history.operation
    if isinstance(layer, keras.layers.Softmax):
        return "softmax"
    return getattr(getattr(layer, "activation", None), "__name__", "")
