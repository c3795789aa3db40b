"""Random numbers that are alike in all parts of a batch: what TensorFlow draws is fixed."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import (
    gen_candidate_sampling_ops,
    gen_random_ops,
    gen_stateful_random_ops,
    gen_stateless_random_ops,
    gen_stateless_random_ops_v2,
)

from gpubalance.engine.keras_inside import name_of
from gpubalance.engine.step.part import Part, replaced_in_parts

# TensorFlow's functions that draw numbers, by module and name.
_MODULES = (
    gen_random_ops,
    gen_stateful_random_ops,
    gen_stateless_random_ops,
    gen_stateless_random_ops_v2,
    gen_candidate_sampling_ops,
)
_NO_NUMBERS = "_get_|_grad$|skip|eager_fallback"
_KINDS = "random_|stateless_|stateful_|truncated_|parameterized_|multinomial$|.*_candidate_sampler$"
_DRAWING = re.compile(f"(?!.*({_NO_NUMBERS}))({_KINDS})")
# Keeps what all but the rarest dropout keeps.
_DRAWN = 0.95


@contextmanager
def fixed_draws() -> Iterator[None]:
    """Makes TensorFlow draw 0.95 for fractions and the least whole numbers, and shuffle nothing.

    It notes in the part where numbers are drawn for the batch as a whole.
    """
    with ExitStack() as undo:
        for module in _MODULES:
            drawing = {}
            for name, function in vars(module).items():
                if _DRAWING.match(name) and inspect.isfunction(function):
                    drawing[name] = partial(_fixed, inspect.signature(function))
            undo.enter_context(replaced_in_parts(module, **drawing))
        yield


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
