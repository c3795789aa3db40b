"""Checks whether a user's samples fit the model, with an error for each thing that can be wrong."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine.labels import alike
from gpubalance.errors import BadInput


def in_order(model: Any, labels: Any) -> tuple[Any, ...]:
    """Labels in the order of the model's outputs, whose names are the keys of a dictionary of labels."""
    if isinstance(labels, dict):
        names = list(model.output_names)
        if set(labels) != set(names):
            raise BadInput(
                f"the data has labels for {', '.join(sorted(labels))}; the model's outputs are {', '.join(names)}",
                remedy="name the labels as the outputs are",
            )
        return tuple(labels[name] for name in names)
    return tuple(tf.nest.flatten(labels))


def check_inputs(where: str, model: Any, inputs: Any) -> None:
    """Raises BadInput for a batch's inputs that the model can't take. `where` begins each message."""
    wanted = tf.nest.flatten(model.inputs)
    given = _by_name(where, model, inputs) if isinstance(inputs, dict) else keras.tree.flatten(inputs)
    if len(given) != len(wanted):
        raise BadInput(
            f"{where} gives {_count(len(given), 'input')}, where the model takes {_count(len(wanted), 'input')}",
            remedy="give x as the model is called with it",
        )
    for values, tensor in zip(given, wanted, strict=True):
        _check_input(where, values, tensor)


def check_numbers(where: str, batch: Any) -> None:
    """Raises BadInput for a first batch with NaN in it."""
    for part, values in zip(("inputs", "labels", "sample weights"), batch, strict=False):
        numbers = [one for one in tf.nest.flatten(values) if one.dtype.is_floating]
        if any(bool(tf.reduce_any(tf.math.is_nan(one))) for one in numbers):
            raise BadInput(
                f"{where}: the first batch has NaN among its {part}",
                remedy="clean the data: with NaN in it the loss is NaN too",
            )


def check_labels(where: str, model: Any, labels: Any) -> None:
    """Raises BadInput for a first batch whose labels are text, or classes that the model's output does not have.

    With wrong classes the loss is NaN on a GPU, and an error on a CPU.
    """
    flat = tf.nest.flatten(labels)
    if any(one.dtype == tf.string for one in flat):
        raise BadInput(f"{where} gives text for labels", remedy="let it give numbers, such as those of classes")
    if not _takes_classes(model) or len(flat) != len(model.outputs):
        return
    for tensor, label in zip(model.outputs, flat, strict=True):
        shape, given, classes = tuple(tensor.shape[1:]), tuple(label.shape[1:]), tensor.shape[-1] or 0
        if classes < 2 or alike(given, shape) or not alike(given, shape[:-1]):
            continue
        low, high = (int(reduced(label)) for reduced in (tf.reduce_min, tf.reduce_max))
        if low < 0 or high >= classes:
            raise BadInput(
                f"{where} gives labels from {low} to {high}, where the model's output {tensor.name} has {classes} "
                f"classes: 0 to {classes - 1}",
                remedy="number the classes from 0, or give the model as many outputs as there are",
            )


def _takes_classes(model: Any) -> bool:
    """Whether the model's loss takes class numbers and ignores none; so does ours for a model without a loss."""
    loss = getattr(model, "loss", None)
    name = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
    return loss is None or ("sparse" in name.lower() and getattr(loss, "ignore_class", None) is None)


def _by_name(where: str, model: Any, inputs: dict[str, Any]) -> list[Any]:
    names = [tensor.name for tensor in tf.nest.flatten(model.inputs)]
    missing = [name for name in names if name not in inputs]
    if missing:
        raise BadInput(
            f"{where} has no input {missing[0]}, which the model takes; it has {', '.join(sorted(map(str, inputs)))}",
            remedy="name them as the model's inputs are",
        )
    return [inputs[name] for name in names]


def _check_input(where: str, values: Any, tensor: Any) -> None:
    if values.dtype == tf.string:
        raise BadInput(f"{where} gives text for the model's input {tensor.name}", remedy="let it give numbers")
    given, wanted = tuple(values.shape[1:]), tuple(tensor.shape[1:])
    if not alike(given, wanted):
        raise BadInput(
            f"{where} gives samples of shape {given} for the model's input {tensor.name}, whose shape is {wanted}",
            remedy="bring the samples to that shape, or build the model for theirs",
        )


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"
