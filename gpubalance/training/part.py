"""A replica's part of a global batch, which the changed Keras code looks up while the replica's step is traced."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, eq=False)
class Change:
    """A step's assignment to a variable; `late`: after the step had applied its gradients."""

    variable: Any
    value: Any
    late: bool


@dataclass(eq=False)
class Part:
    """A replica's part of the global batch, and what its step has done so far.

    `weight` is the weight of its mean in the global mean. A batch that all replicas have `whole` `counts` on the first
    one alone. `micro`: it is a micro-batch. `is_scaled`: the loss has been multiplied by the weight. `assigns`: Keras
    is setting a variable. `depth`: how many losses, each called by the one before, are being computed. `metric` is the
    one that is being updated. `taken` has the gradients and variables of each call of the optimizer, `losses` each loss
    with its reduction, `behind_masks` the synchronised layers that got a mask, `added` the single numbers that layers
    add to the loss, with their names.
    `results` has the metrics' results that the step asked for, by the tensor's id: the tensor, the metric and which of
    its results it is. `taken_after`: how many operations the graph had when the gradients were taken. `tried`: the step
    is traced for some samples alone, and `divides` if a loss's divisor would need the others.
    """

    weight: Any
    whole: bool
    counts: bool
    micro: bool
    tried: bool = False
    divides: bool = False
    is_scaled: bool = False
    assigns: bool = False
    depth: int = 0
    metric: str = ""
    taken: list[tuple[list[Any], list[Any]]] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    losses: list[tuple[Any, Any]] = field(default_factory=list)
    added: list[tuple[str, Any]] = field(default_factory=list)
    behind_masks: list[str] = field(default_factory=list)
    taken_after: int = 0
    results: dict[int, tuple[Any, Any, int]] = field(default_factory=dict)


class _Current(threading.local):
    part: Part | None = None


current = _Current()


@contextlib.contextmanager
def part_of(
    weight: Any, *, whole: bool = False, counts: bool = True, micro: bool = False, tried: bool = False
) -> Iterator[Part]:
    """Sets the part of the replica whose step this thread traces inside the block."""
    current.part = Part(weight, whole, counts, micro, tried)
    try:
        yield current.part
    finally:
        current.part = None


@contextlib.contextmanager
def replaced(owner: Any, **values: Any) -> Iterator[None]:
    """Replaces attributes or methods of an object or a class inside the block."""
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
