"""Random numbers that are the same for every sample, with which a step is tried in parts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import (
    gen_random_ops,
    gen_stateful_random_ops,
    gen_stateless_random_ops,
    gen_stateless_random_ops_v2,
)

from gpubalance.engine.step.own import name_of
from gpubalance.engine.step.part import current, replaced

_MODULES = (gen_random_ops, gen_stateful_random_ops, gen_stateless_random_ops, gen_stateless_random_ops_v2)
_DRAWING = ("random_", "stateless_random_", "stateful_", "truncated_", "stateless_truncated_", "parameterized_")
_OTHERS = ("multinomial", "stateless_multinomial", "stateless_parameterized_truncated_normal", "stateless_shuffle")
# Keeps what all but the rarest dropout keeps.
_DRAWN = 0.95


@contextmanager
def alike() -> Iterator[None]:
    """Makes TensorFlow draw 0.95 for every fraction, the least whole number, and the given order for a shuffle."""
    with ExitStack() as undo:
        for module in _MODULES:
            drawing = {
                name: _alike(name, function)
                for name, function in vars(module).items()
                if inspect.isfunction(function) and _draws(name)
            }
            undo.enter_context(replaced(module, **drawing))
        yield


def _draws(name: str) -> bool:
    is_key = "_get_" in name or "eager_fallback" in name or name.endswith("_grad") or "skip" in name
    return not is_key and (name in _OTHERS or name.startswith(_DRAWING))


def _alike(name: str, draw: Callable[..., Any]) -> Callable[..., Any]:
    def drawn(*arguments: Any, **named: Any) -> Any:
        """What the original would draw, made of the same number."""
        given = inspect.signature(draw).bind(*arguments, **named).arguments
        if "shuffle" in name:
            return tf.identity(given["value"])
        found = draw(*arguments, **named)
        part = current.part
        if part is not None and part.calling and found.shape.is_fully_defined():
            part.tell(
                f"the loss {name_of(part.calling[0])} draws random numbers for the batch as a whole, so it is not "
                "known whether a split, in which each device draws its own, gives what one device does"
            )
        least = tf.cast(given.get("minval", 0), found.dtype)
        return tf.ones_like(found) * _DRAWN if found.dtype.is_floating else tf.zeros_like(found) + least

    return drawn
