"""Whether `balance` ends with the best split that it could know, on random machines.

The machines' times are off their lines.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Literal, get_args

import numpy as np

from gpubalance.settings.device import Device
from tests.support.machines import MULTIPLE, Machine, limit_of
from tests.support.outcomes import Outcome, RoundCounts, outcome

_MACHINES = 800
# A file of {search: {card: [[batch, seconds], …]}}: how long real cards took for each batch, with and
# without cuDNN's search for its fastest algorithms. It is not ours to pass on.
RECORD = "GPUBALANCE_RECORD"
Search = Literal["search_off", "search_on"]


@dataclass(frozen=True)
class SteppedMachine(Machine):
    """One whose times have the steps of real cards, drawn anew."""

    search: Search = "search_off"

    def offset(self, device: Device, size: int) -> float:
        """That of a card of the record at the same part of its limit."""
        return off_by_record(self.search, self.seed, device, size)


def off_by_record(search: Search, seed: int, device: Device, size: int) -> float:
    """A device's time over that of its line, by a card of the record that is drawn for it."""
    cards = _residuals(search)
    drawn = cards[Random(f"{seed} {device.uuid}").randrange(len(cards))]
    part = size / limit_of(device)
    return drawn[min(len(drawn) - 1, int(part * len(drawn)))]


@cache
def _residuals(search: Search) -> list[list[float]]:
    """How far each card of the record is off its line at each batch, from 8 samples on."""
    record = json.loads(Path(os.environ[RECORD]).read_text(encoding="utf-8"))[search]
    found = []
    for points in record.values():
        batches, times = np.array([point for point in points if point[0] >= MULTIPLE]).T
        line = np.polyfit(batches, times, 1, w=1 / times)
        found.append((times / np.polyval(line, batches)).tolist())
    return found


def main(machines: int = _MACHINES, seed: int = 0) -> Iterator[str]:
    yield f"{machines} drawn machines a row"
    for off, updates in ((0.0, False), (0.02, False), (0.03, False), (0.03, True)):
        found = [
            outcome(Machine(seed + number, off, updates)) for number in range(machines)
        ]
        yield f"±{off:.0%}{', updates' if updates else ''}: {_figures(found)}"
    for search in get_args(Search):
        if RECORD in os.environ:
            stepped = [
                SteppedMachine(seed + n, 0.0, search=search)
                for n in range(machines // 4)
            ]
            yield f"real steps, {search}: {_figures(list(map(outcome, stepped)))}"
        else:
            yield f"real steps, {search}: left out, as {RECORD} names no file"
    yield _links(
        [
            outcome(Machine(seed + number, 0.0, links=True))
            for number in range(machines // 4)
        ]
    )


def _links(found: list[Outcome]) -> str:
    """Of machines on which each device has a sync of its own."""
    below = [item.below_optimum for item in found if item.below_optimum is not None]
    return (
        f"links of their own: over 0.5 % below the best of all sets {_over(0.005, below)}; "
        f"{_told_rounds([item.rounds for item in found])}"
    )


def _figures(found: list[Outcome]) -> str:
    measured = [item.below_measured for item in found]
    optimum = [item.below_optimum for item in found if item.below_optimum is not None]
    best_known = [item.below_known for item in found if item.below_known is not None]
    return (
        f"over 0.5 % below a split that they measured {_over(0.005, measured)}; "
        f"over 1 % below the optimum {_over(0.01, optimum)}, by what was measured "
        f"{_over(0.01, best_known)}; {_told_rounds([item.rounds for item in found])}"
    )


def _over(bound: float, parts: Sequence[float]) -> str:
    return (
        f"{sum(part > bound for part in parts)} of {len(parts)}, worst {max(parts):.1%}"
    )


def _told_rounds(counts: Sequence[RoundCounts]) -> str:
    """How many there were on average, and how many of them had a purpose of their own."""
    every, once_more, other_devices = zip(*counts, strict=True)
    return (
        f"{statistics.mean(every):.2f} rounds, at most {max(every)}, of which "
        f"{statistics.mean(once_more):.2f} once more, {statistics.mean(other_devices):.2f} "
        "with other devices"
    )
