"""The part of a global batch that a replica has, known to Keras' code while this thread traces the replica's step."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, eq=False)
class Change:
    """A variable that a step gave another value; `late`: after it had applied its gradients."""

    variable: Any
    value: Any
    late: bool


@dataclass(eq=False)
class Part:
    """What a replica has of the global batch, and what its step has done so far.

    `weight` is what its mean counts for in the global mean. A batch that all replicas have `whole` counts in the first
    one's alone. `micro`: it is a micro-batch. `is_scaled`: the loss has been multiplied by the weight. `depth`: how
    many losses, each called by the one before, are being computed. `metric` is the one that is being updated. `taken`
    has the gradients and variables of each time that the optimizer was called, `losses` each loss with its reduction,
    `behind_masks` the synchronised layers that got a mask.
    """

    weight: Any
    whole: bool
    counts: bool
    micro: bool
    is_scaled: bool = False
    depth: int = 0
    metric: str = ""
    taken: list[tuple[list[Any], list[Any]]] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    losses: list[tuple[Any, Any]] = field(default_factory=list)
    behind_masks: list[str] = field(default_factory=list)


class _Current(threading.local):
    part: Part | None = None


current = _Current()


@contextlib.contextmanager
def part_of(weight: Any, *, whole: bool = False, counts: bool = True, micro: bool = False) -> Iterator[Part]:
    """While this thread traces a replica's step, the part that it is of."""
    current.part = Part(weight, whole, counts, micro)
    try:
        yield current.part
    finally:
        current.part = None


@contextlib.contextmanager
def replaced(owner: Any, **values: Any) -> Iterator[None]:
    """Gives an object or a class other attributes or methods for a while."""
    before = {name: vars(owner)[name] for name in values if name in vars(owner)}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name in values:
            if name in before:
                setattr(owner, name, before[name])
            else:
                delattr(owner, name)
