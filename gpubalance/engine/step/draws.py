"""Random numbers that are the same for every sample, with which a step is tried in parts."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import (
    gen_candidate_sampling_ops,
    gen_random_ops,
    gen_stateful_random_ops,
    gen_stateless_random_ops,
    gen_stateless_random_ops_v2,
)

from gpubalance.engine.step.own import name_of
from gpubalance.engine.step.part import Part, in_parts

_MODULES = (
    *(gen_random_ops, gen_stateful_random_ops, gen_stateless_random_ops, gen_stateless_random_ops_v2),
    gen_candidate_sampling_ops,
)
_NO_NUMBERS = "_get_|_grad$|skip|eager_fallback"
_KINDS = "random_|stateless_|stateful_|truncated_|parameterized_|multinomial$|.*_candidate_sampler$"
_DRAWING = re.compile(f"(?!.*({_NO_NUMBERS}))({_KINDS})")
# Keeps what all but the rarest dropout keeps.
_DRAWN = 0.95


@contextmanager
def alike() -> Iterator[None]:
    """Makes TensorFlow draw 0.95 for every fraction, the least whole numbers, and the given order for a shuffle."""
    with ExitStack() as undo:
        for module in _MODULES:
            functions = {name: one for name, one in vars(module).items() if inspect.isfunction(one)}
            drawing = {name: _alike(name, one) for name, one in functions.items() if _DRAWING.match(name)}
            undo.enter_context(in_parts(module, **drawing))
        yield


def _alike(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(function)

    def drawn(part: Part, draw: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """What the original would draw, made of the same number."""
        given = signature.bind(*arguments, **named).arguments
        if "shuffle" in name:
            return tf.identity(given["value"])
        found = draw(*arguments, **named)
        if isinstance(found, tuple):  # classes for the whole batch, and how often to expect them and the labels
            part.tell(_for_the_batch("the train_step"))
            classes, *counts = found
            first = tf.range(tf.size(classes), dtype=classes.dtype)
            return type(found)(first, *map(tf.ones_like, counts))
        if part.calling and found.shape.is_fully_defined():
            part.tell(_for_the_batch(f"the loss {name_of(part.calling[0])}"))
        least = tf.cast(given.get("minval", 0), found.dtype)
        return tf.ones_like(found) * _DRAWN if found.dtype.is_floating else tf.zeros_like(found) + least

    return drawn


def _for_the_batch(what: str) -> str:
    return (
        f"{what} draws random numbers for the batch as a whole, so it is not known whether a split, in which each "
        "device draws its own, gives what one device does"
    )
