"""Checks a user's first batch for what Keras would train on without a word, or tell only when it is too late."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from gpubalance.engine.labels import alike, in_order
from gpubalance.errors import BadInput


def check_values(where: str, batch: Any, *, takes_text: bool) -> None:
    """Raises BadInput for a batch with NaN in it, or with text. `where` begins each message."""
    for part, values in zip(("inputs", "labels", "sample weights"), batch, strict=False):
        flat = tf.nest.flatten(values)
        if not takes_text and any(one.dtype == tf.string for one in flat):
            raise BadInput(f"{where} has text among its {part}", remedy="let it give numbers, such as those of classes")
        if any(bool(tf.reduce_any(tf.math.is_nan(one))) for one in flat if one.dtype.is_floating):
            raise BadInput(
                f"{where}: the first batch has NaN among its {part}",
                remedy="clean the data: with NaN in it the loss is NaN too",
            )


def check_classes(where: str, model: Any, labels: Any) -> None:
    """Raises BadInput for classes that the model's output does not have.

    With them the loss is NaN on a GPU, and an error on a CPU.
    """
    try:
        pairs = zip(model.outputs, in_order(model, labels), strict=True)
    except ValueError:  # is told when the model is compiled for them, or built with them
        return
    for tensor, label in pairs if _takes_classes(model) else ():
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
