"""Random numbers that are alike in all parts of a batch: what TensorFlow draws is fixed."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import tensorflow as tf

from gpubalance.engine.keras_patches import drawing_functions, name_of
from gpubalance.engine.step.part import Part, PartReplacements

# Keeps what all but the rarest dropout keeps.
_DRAWN = 0.95


def fixed_draws() -> PartReplacements:
    """What makes TensorFlow draw 0.95 for fractions and the least whole numbers, and not shuffle.

    It notes in the part where numbers are drawn for the batch as a whole.
    """
    return {
        function: partial(_fixed, signature)
        for function, signature in drawing_functions().items()
    }


def _fixed(
    signature: inspect.Signature, part: Part, draw: Any, *arguments: Any, **named: Any
) -> Any:
    """What a function with that signature gives instead of what it draws."""
    by_name = signature.bind(*arguments, **named).arguments
    if "value" in by_name:  # it shuffles
        return tf.identity(by_name["value"])
    drawn = draw(*arguments, **named)
    # Classes for the whole batch, and how often to expect them and the labels.
    if isinstance(drawn, tuple):
        part.warn(_for_the_batch("the train_step"))
        classes, *counts = drawn
        first = tf.range(tf.size(classes), dtype=classes.dtype)
        return type(drawn)(first, *map(tf.ones_like, counts))
    if part.calling and drawn.shape.is_fully_defined():
        part.warn(_for_the_batch(f"the loss {name_of(part.calling[0])}"))
    if drawn.dtype.is_floating:
        return tf.ones_like(drawn) * _DRAWN
    return tf.zeros_like(drawn) + tf.cast(by_name.get("minval", 0), drawn.dtype)


def _for_the_batch(what: str) -> str:
    return (
        f"{what} draws random numbers for the batch as a whole, so it is not known whether a "
        "split, in which each device draws its own, gives what one device does"
    )
