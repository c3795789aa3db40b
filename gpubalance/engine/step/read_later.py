"""Logs whose numbers stay on their device until somebody reads one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(eq=False)
class _Numbers:
    """Numbers on a device, which are read all at once when the first one is asked for."""

    vector: Any

    @cached_property
    def read(self) -> list[float]:
        return self.vector.numpy().tolist()  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Number:
    """One of them, for whoever takes its float, as Keras does when a callback wants the logs."""

    numbers: _Numbers
    place: int

    def __float__(self) -> float:
        return self.numbers.read[self.place]


def read_later(logs: Mapping[str, Any], vector: Any) -> dict[str, Any]:
    """A step's logs, in which the vector's numbers take the places of None, in order."""
    numbers = _Numbers(vector)
    names = [name for name, value in logs.items() if value is None]
    filled = dict(logs)
    for place, name in enumerate(names):
        filled[name] = _Number(numbers, place)
    return filled
