"""Logs whose numbers stay on their device until somebody reads one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True)
class _Number:
    """A number for whoever takes its float, as Keras does when a callback wants the logs."""

    read: Callable[[], list[float]]
    place: int

    def __float__(self) -> float:
        return self.read()[self.place]


def read_later(logs: Mapping[str, Any], vector: Any) -> dict[str, Any]:
    """A step's logs, in which the vector's numbers take the places of None, in order.

    All are read at once when the first one is asked for.
    """
    read = cache(lambda: vector.numpy().tolist())
    filled = dict(logs)
    names = [name for name, value in logs.items() if value is None]
    for place, name in enumerate(names):
        filled[name] = _Number(read, place)
    return filled
