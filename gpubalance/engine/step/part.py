"""A replica's part of a global batch, which the changed Keras code gets while the replica's step is
traced.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpubalance.results.decomposition import UNTRIED, Decomposition


@dataclass(frozen=True, eq=False)
class Change:
    """A step's assignment to a variable; `late`: after the step had applied its gradients."""

    variable: Any
    value: Any
    late: bool


class ReducedLoss(NamedTuple):
    """What one of Keras' losses returned: times the part's weight it is the part's share. `values`
    were reduced.
    """

    loss: Any
    values: Any
    result: Any


class Added(NamedTuple):
    """What a layer adds to the loss; `divided`: Keras divides it by the samples, as it does a
    regularizer's.
    """

    layer: str
    loss: Any
    divided: bool
    is_regularizer: bool


@dataclass(eq=False)
class ParityProbe:
    """What the parity check gives a part, and what it is told. See `trial.py`.

    `divisors` are those of the whole batch, 0 where they are the part's own. What layers add to the
    loss is multiplied by the part's weight to the power of one of the `exponents`. `states` has the
    ids of the tensors that stand for variables.
    """

    divisors: Any
    exponents: Any
    states: frozenset[int]
    divided: list[Any] = field(default_factory=list)
    losses: list[ReducedLoss] = field(default_factory=list)
    added: list[Added] = field(default_factory=list)
    targets: list[Any] = field(default_factory=list)
    told: list[str] = field(default_factory=list)


@dataclass(eq=False)
class Part:
    """A replica's part of the global batch, and what its step has done so far.

    `weight` is the weight of its mean in the global mean. `whole`: all replicas have the whole
    batch, of which one counts. `micro`: it is a micro-batch. `is_scaled`: the loss has been
    multiplied by the weight. `assigns`: Keras is setting a variable. `calling` has the losses that
    are being computed, each called by the one before. `taken` has the gradients and variables of
    each call of the optimizer, `behind_masks` the synchronised layers that got a mask. `results`
    has the metrics' results that the step asked for, by the tensor's id: the tensor, the metric and
    which of its results it is. `graph` is the one that the step is traced in, `taken_after` how
    many operations it had when the gradients were taken, `taken_inside` whether that was in a
    branch or a loop of it. `added`: how many losses layers have added, `losses` those of each layer
    by its id.
    """

    weight: Any
    verdict: Decomposition = UNTRIED
    whole: bool = False
    micro: bool = False
    probing: ParityProbe | None = None
    is_scaled: bool = False
    assigns: bool = False
    calling: list[Any] = field(default_factory=list)
    taken: list[tuple[list[Any], list[Any]]] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    behind_masks: list[str] = field(default_factory=list)
    graph: Any = None
    taken_after: int = 0
    taken_inside: bool = False
    added: int = 0
    losses: dict[int, list[Any]] = field(default_factory=dict)
    results: dict[int, tuple[Any, Any, int]] = field(default_factory=dict)

    def tell(self, text: str) -> None:
        """Notes what is not exact, for the parity check: a later trace says nothing."""
        if self.probing is not None:
            self.probing.told.append(text)


class _Current(threading.local):
    part: Part | None = None


current = _Current()


@contextlib.contextmanager
def part_of(weight: Any, verdict: Decomposition = UNTRIED, **options: Any) -> Iterator[Part]:
    """Sets the part of the replica whose step this thread traces inside the block."""
    current.part = Part(weight, verdict, **options)
    try:
        yield current.part
    finally:
        current.part = None


@contextlib.contextmanager
def replaced(owner: Any, **values: Any) -> Iterator[None]:
    """Replaces attributes or methods of an object, a class or a module inside the block."""
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


def in_parts(owner: Any, **changed: Callable[..., Any]) -> contextlib.AbstractContextManager[None]:
    """Replaces methods for the steps of parts that are traced inside the block: each gets the part
    and the original.
    """

    def made(name: str, change: Callable[..., Any]) -> Callable[..., Any]:
        original = getattr(owner, name)

        def method(*arguments: Any, **named: Any) -> Any:
            part = current.part
            return (
                original(*arguments, **named)
                if part is None
                else change(part, original, *arguments, **named)
            )

        return method

    return replaced(owner, **{name: made(name, change) for name, change in changed.items()})
