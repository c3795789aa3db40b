"""What a model that is not compiled is compiled with, and random labels that suit a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from gpubalance.engine.keras_patches import (
    function_of,
    ignores_class,
    is_keras_own,
    losses_of,
)

Shape: TypeAlias = tuple[int | None, ...]  # None is an open dimension


@dataclass(frozen=True)
class Target:
    """One output's labels: the shape of a sample's, and how many classes they have.

    0 classes are real numbers from 0 to 1.
    """

    shape: Shape
    classes: int


def compile_for(model: Any, labels: Any = None) -> list[Target]:
    """Compiles a model with its optimizer, else Adam, and a loss for each output, or its labels.

    Returns the labels that suit its outputs; empty if some are given. Softmax outputs get sparse
    categorical cross-entropy, sigmoid ones the binary one, others squared error. The last layer's
    activation decides. Raises ValueError for an output of unknown shape, and for labels that suit
    no output.
    """
    targets: list[Target] = []
    if labels is None:
        targets = [_usual(tensor) for tensor in model.outputs]
        shapes = [target.shape for target in targets]
    else:
        shapes = [_shape(label) for label in in_order(model, labels)]
    losses = [_loss_for(*pair) for pair in zip(model.outputs, shapes, strict=True)]
    optimizer = getattr(model, "optimizer", None) or keras.optimizers.Adam()
    model.compile(optimizer, as_outputs(model, losses), jit_compile=False)
    return targets


def in_order(model: Any, labels: Any) -> list[Any]:
    """Labels by the model's outputs. Raises ValueError unless there is one for each."""
    names = getattr(model, "output_names", ())  # a Sequential has none
    if isinstance(labels, dict) and names:
        if set(labels) != set(names):
            raise ValueError(
                f"labels for {', '.join(sorted(labels))}, but the model's outputs are "
                f"{', '.join(names)}"
            )
        return [labels[name] for name in names]
    flat = keras.tree.flatten(labels)
    if len(flat) != len(model.outputs):
        raise ValueError(
            f"labels for {len(flat)} outputs, but the model has {len(model.outputs)}"
        )
    return list(flat)


def as_outputs(model: Any, values: list[Any]) -> Any:
    """One value for each output, in the structure of the model's outputs."""
    if len(values) == 1:
        return values[0]
    return keras.tree.pack_sequence_as(model.output, values)


def random_targets(model: Any, suits: Callable[[list[Target]], bool]) -> list[Target]:
    """The labels of each output that a compiled model takes.

    They follow from Keras' own losses; else they are the first that `suits`. Raises ValueError if
    none do.
    """
    outputs = model.outputs
    losses = losses_of(model._compile_loss)
    are_known = all(
        isinstance(loss, str) or is_keras_own(function_of(loss)) for loss in losses
    )
    if (
        is_keras_own(type(model).train_step)
        and are_known
        and len(losses) == len(outputs)
    ):
        return [
            _by_loss(loss, tensor) for loss, tensor in zip(losses, outputs, strict=True)
        ]
    candidates = [
        list(map(labels_for, outputs)) for labels_for in (_like_it, _usual, _classes)
    ]
    for targets in candidates:
        if suits(targets):
            return targets
    raise ValueError(
        "its outputs do not show which labels its train_step, loss and metrics take, "
        "and random labels do not fit"
    )


def _by_loss(loss: Any, tensor: Any) -> Target:
    name = loss
    if not isinstance(loss, str):
        name = getattr(loss, "name", None) or loss.__name__
    if "sparse" in name.lower():
        return _classes(tensor)
    if "binary" in name.lower():
        return Target(_shape(tensor), 2)
    return Target(_shape(tensor), 0)


def _shape(values: Any) -> Shape:
    """The shape of one sample."""
    return tuple(values.shape[1:])


def _like_it(tensor: Any) -> Target:
    return Target(_shape(tensor), 0)


def _classes(tensor: Any) -> Target:
    return Target(_shape(tensor)[:-1], int(tensor.shape[-1] or 2))


def _usual(tensor: Any) -> Target:
    """The labels that usually belong to an output."""
    shape = _shape(tensor)
    activation = _activation(tensor)
    if None in shape:
        raise ValueError(
            f"output {tensor.name} has the shape {tuple(tensor.shape)}: only the batch "
            "dimension may be open"
        )
    if not tf.as_dtype(tensor.dtype).is_floating:
        raise ValueError(
            f"output {tensor.name} is {tensor.dtype}: a loss needs real numbers"
        )
    if activation == "softmax" and shape and (shape[-1] or 0) > 1:
        return _classes(tensor)
    if activation == "sigmoid":
        return Target(shape, 2)
    return Target(shape, 0)


def _loss_for(tensor: Any, label_shape: Shape) -> Any:
    """The loss for an output and its labels of that shape.

    Labels that lack the output's last dimension are class numbers.
    """
    shape = _shape(tensor)
    activation = _activation(tensor)
    fits = _equal_on_all(label_shape, shape)
    if activation == "softmax" and fits:
        return keras.losses.CategoricalCrossentropy()
    if shape and (shape[-1] or 0) > 1 and _equal_on_all(label_shape, shape[:-1]):
        return keras.losses.SparseCategoricalCrossentropy(
            from_logits=activation != "softmax"
        )
    if not fits:
        raise ValueError(
            f"labels of shape {label_shape} per sample for the output {tensor.name}, "
            f"whose shape is {shape}"
        )
    if activation == "sigmoid":
        return keras.losses.BinaryCrossentropy()
    return keras.losses.MeanSquaredError()


def classes_of(model: Any, labels: Any) -> Iterator[tuple[str, Any, int]]:
    """For each output whose labels are class numbers: its name, labels and how many classes it has.

    Nothing if the loss ignores a class, or takes none; ours does for a model without a loss.
    """
    loss = getattr(model, "loss", None)
    if loss is not None:
        name = loss
        if not isinstance(loss, str):
            name = getattr(loss, "__name__", type(loss).__name__)
        if "sparse" not in name.lower() or ignores_class(loss):
            return
    try:
        ordered = in_order(model, labels)
    except ValueError:
        # It is told when the model is compiled for them, or built with them.
        return
    for tensor, label in zip(model.outputs, ordered, strict=True):
        shape = _shape(tensor)
        label_shape = _shape(label)
        classes = tensor.shape[-1] or 0
        if (
            classes > 1
            and not _equal_on_all(label_shape, shape)
            and _equal_on_all(label_shape, shape[:-1])
        ):
            yield tensor.name, label, classes


def _equal_on_all(one: Shape, other: Shape) -> bool:
    """Whether Keras makes two shapes equal: it adds or removes a last dimension of 1."""
    return _match(one, other) or _match(one, (*other, 1)) or _match((*one, 1), other)


def _match(one: Shape, other: Shape) -> bool:
    """Whether two shapes are equal; None matches any size."""
    if len(one) != len(other):
        return False
    pairs = zip(one, other, strict=True)
    return all(
        size == other_size or None in (size, other_size) for size, other_size in pairs
    )


def _activation(tensor: Any) -> str:
    """The name of the activation behind an output, of its layer or as a layer of its own."""
    layer = tensor._keras_history.operation
    if isinstance(layer, keras.layers.Softmax):
        return "softmax"
    return getattr(getattr(layer, "activation", None), "__name__", "")
