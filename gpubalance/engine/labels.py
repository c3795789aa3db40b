"""What a model that is not compiled is compiled with, and random labels that suit a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine.keras_inside import function_of, is_keras_own

_NONE_SUITS = (
    "its outputs do not tell what labels its train_step, loss and metrics take: random ones do "
    "not suit them"
)


@dataclass(frozen=True)
class Target:
    """One output's labels: their shape for one sample, and the number of classes (0: real numbers
    from 0 to 1).
    """

    shape: tuple[int | None, ...]
    classes: int


def compile_for(model: Any, labels: Any = None) -> list[Target]:
    """Compiles a model with its optimizer, else Adam, and a loss that suits each output, or its
    labels, as in a batch.

    Returns the labels that suit its outputs; empty if some are given. Softmax outputs get sparse
    categorical cross-entropy, sigmoid ones the binary one, others squared error. The last layer's
    activation decides. Raises ValueError for an output of unknown shape, and for labels that suit
    no output.
    """
    targets = [_usual(tensor) for tensor in model.outputs] if labels is None else []
    shapes = [one.shape for one in targets] or [
        tuple(one.shape[1:]) for one in in_order(model, labels)
    ]
    losses = [_loss_for(*pair) for pair in zip(model.outputs, shapes, strict=True)]
    optimizer = getattr(model, "optimizer", None) or keras.optimizers.Adam()
    model.compile(optimizer, as_outputs(model, losses), jit_compile=False)
    return targets


def in_order(model: Any, labels: Any) -> list[Any]:
    """Labels in the order of the model's outputs. Raises ValueError if there is not one
    for each.
    """
    names = getattr(model, "output_names", ())  # a Sequential has none
    if isinstance(labels, dict) and names:
        if set(labels) != set(names):
            raise ValueError(
                f"labels for {', '.join(sorted(labels))}, where its outputs are {', '.join(names)}"
            )
        return [labels[name] for name in names]
    flat = keras.tree.flatten(labels)
    if len(flat) != len(model.outputs):
        raise ValueError(
            f"labels for {len(flat)} outputs, where the model has {len(model.outputs)}"
        )
    return list(flat)


def as_outputs(model: Any, values: list[Any]) -> Any:
    """One value for each output, in the structure of the model's outputs."""
    return values[0] if len(values) == 1 else keras.tree.pack_sequence_as(model.output, values)


def random_targets(model: Any, suits: Callable[[list[Target]], bool]) -> list[Target]:
    """The labels of each output that a compiled model takes: by Keras' own losses, else the first
    that `suits`.

    Raises ValueError if none do.
    """
    outputs = model.outputs
    losses = (
        [] if model._compile_loss is None else keras.tree.flatten(model._compile_loss._user_loss)
    )
    are_known = all(isinstance(one, str) or is_keras_own(function_of(one)) for one in losses)
    if is_keras_own(type(model).train_step) and are_known and len(losses) == len(outputs):
        return [_by_loss(loss, tensor) for loss, tensor in zip(losses, outputs, strict=True)]
    candidates = [[kind(tensor) for tensor in outputs] for kind in (_like_it, _usual, _classes)]
    found = next(filter(suits, candidates), None)
    if found is None:
        raise ValueError(_NONE_SUITS)
    return found


def _by_loss(loss: Any, tensor: Any) -> Target:
    name = (loss if isinstance(loss, str) else getattr(loss, "name", None) or loss.__name__).lower()
    return (
        _classes(tensor)
        if "sparse" in name
        else Target(_shape(tensor), 2 if "binary" in name else 0)
    )


def _shape(values: Any) -> tuple[int | None, ...]:
    """That of one sample."""
    return tuple(values.shape[1:])


def _like_it(tensor: Any) -> Target:
    return Target(_shape(tensor), 0)


def _classes(tensor: Any) -> Target:
    return Target(_shape(tensor)[:-1], int(tensor.shape[-1] or 2))


def _usual(tensor: Any) -> Target:
    """The labels that usually belong to an output."""
    shape, activation = _shape(tensor), _activation(tensor)
    if None in shape:
        raise ValueError(
            f"output {tensor.name} has the shape {tuple(tensor.shape)}: only the batch may be "
            "unknown"
        )
    if not tf.as_dtype(tensor.dtype).is_floating:
        raise ValueError(f"output {tensor.name} is {tensor.dtype}: a loss needs real numbers")
    if activation == "softmax" and shape and (shape[-1] or 0) > 1:
        return _classes(tensor)
    return Target(shape, 2 if activation == "sigmoid" else 0)


def _loss_for(tensor: Any, given: tuple[int | None, ...]) -> Any:
    """The loss for an output and its labels: labels that lack the output's last dimension are class
    numbers.
    """
    shape, activation, losses = _shape(tensor), _activation(tensor), keras.losses
    fits = _alike(given, shape)
    if activation == "softmax" and fits:
        return losses.CategoricalCrossentropy()
    if len(shape) and (shape[-1] or 0) > 1 and _alike(given, shape[:-1]):
        return losses.SparseCategoricalCrossentropy(from_logits=activation != "softmax")
    if not fits:
        raise ValueError(
            f"labels of shape {given} a sample for the output {tensor.name}, whose shape is {shape}"
        )
    return (losses.BinaryCrossentropy if activation == "sigmoid" else losses.MeanSquaredError)()


def classes_of(model: Any, labels: Any) -> Iterator[tuple[str, Any, int]]:
    """Of each output whose labels are class numbers its name, the labels and how many classes it
    has.

    Nothing if the loss ignores a class, or takes none; ours does for a model without a loss.
    """
    loss = getattr(model, "loss", None)
    name = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
    if loss is not None and (
        "sparse" not in name.lower() or getattr(loss, "ignore_class", None) is not None
    ):
        return
    try:
        pairs = list(zip(model.outputs, in_order(model, labels), strict=True))
    except ValueError:  # is told when the model is compiled for them, or built with them
        return
    for tensor, label in pairs:
        shape, given, classes = _shape(tensor), _shape(label), tensor.shape[-1] or 0
        if classes > 1 and not _alike(given, shape) and _alike(given, shape[:-1]):
            yield tensor.name, label, classes


def _alike(one: tuple[int | None, ...], other: tuple[int | None, ...]) -> bool:
    """Whether Keras makes two shapes equal: it adds or removes a last dimension of 1. None matches
    any size.
    """
    pairs = ((one, other), (one, (*other, 1)), ((*one, 1), other))
    same_rank = (zip(*pair, strict=True) for pair in pairs if len(pair[0]) == len(pair[1]))
    return any(all(None in (a, b) or a == b for a, b in sizes) for sizes in same_rank)


def _activation(tensor: Any) -> str:
    """The name of the activation behind an output: its layer's own, or that of an Activation or
    Softmax layer.
    """
    layer = tensor._keras_history.operation
    if isinstance(layer, keras.layers.Softmax):
        return "softmax"
    return getattr(getattr(layer, "activation", None), "__name__", "")
