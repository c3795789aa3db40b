"""Logs whose numbers stay on their device until somebody reads one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpubalance.engine.step.later_results import LaterResults


@dataclass(frozen=True)
class _Number:
    """A number for whoever takes its float, as Keras does when a callback wants the logs."""

    read: Callable[[], list[float]]
    place: int

    def __float__(self) -> float:
        return self.read()[self.place]


def read_later(
    logs: Mapping[str, Any], vector: Any, later: LaterResults, states: Any
) -> dict[str, Any]:
    """A step's logs, in which the vector's numbers take the places of None, in order.

    All are read at once when the first one is asked for; so are those that are computed `later`
    from the step's `states`.
    """
    read = cache(lambda: vector.numpy().tolist())
    compute = cache(lambda: later.read(*states))
    filled = dict(logs)
    places = count()
    for name, value in logs.items():
        if name in later:
            filled[name] = _Number(compute, later.place(name))
        elif value is None:
            filled[name] = _Number(read, next(places))
    return filled
