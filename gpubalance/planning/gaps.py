"""Which global batches micro-batches reach: k equal ones leave gaps, as no device does 7 granules in two halves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from gpubalance.planning.fleet import Fleet, Floats

_Start: TypeAlias = tuple[int, int]  # (k, what is missing to the top at k's largest u)


@dataclass(frozen=True)
class _Less:
    """What a device can do less than its top: for each k the arithmetic progression start, start + k, … to `most`."""

    most: int
    starts: tuple[_Start, ...]

    def added(self, reached: int) -> int:
        """The set (bit d: d is in it) of all sums of one of `reached` and of nothing or one of these."""
        together = reached
        for k, start in self.starts:
            terms, done = (self.most - start) // k + 1, 1
            shifted = reached << start
            while done < terms:
                further = min(done, terms - done)
                shifted |= shifted << (k * further)
                done += further
            together |= shifted
        return together

    def each(self) -> Iterator[int]:
        """All of these, each at least once."""
        for k, start in self.starts:
            yield from range(start, self.most + 1, k)


class Reach:
    """Which totals b₁ + … + bₙ are possible by a deadline T, each bᵢ = k·u with k·t(u) ≤ T, or nothing.

    The sets have gaps, so this is a subset sum, told by what is missing to G(T): few granules as a rule, as T is the
    first with enough. Two things keep it short.

    - Large shortfalls are always possible. Let J be devices that with one micro-batch reach all totals in a range of
      at least K − 1. Every other device has a chain of possible batches from its floor to its top in steps of at most
      K: multiples of the k of its top. Raised one after the other they pass all totals in steps of at most K, and J
      fills the steps: all is possible but what misses G(T) by less than J's tops are above what J does so.
    - Small ones are summed as sets in the bits of an integer: once for each kind of device, until nothing is new.
    """

    def __init__(self, fleet: Fleet, deadline_s: float) -> None:
        self._micro = fleet.micro_units(np.array([deadline_s]))[0]
        self._top = fleet.most(self._micro)
        self._whole = np.maximum(self._micro[0], fleet.floor)
        self._fleet = fleet
        self.total = int(self._top @ fleet.count)
        self._always = self._always_from()

    def has(self, total: int) -> bool:
        """Whether that total is possible."""
        missing = self.total - total
        if missing < 0 or total < self._fleet.floor.sum():
            return False
        return missing == 0 or missing >= self._always or self._found(missing, missing) is not None

    def split(self, total: int) -> Floats:
        """The granules of each device for a possible total, where the most that a device does less is the least.

        Devices that could do less by as much do so from the last to the first.
        """
        missing = self.total - total
        if missing == 0:
            return self._given([])
        most = 1
        while (taken := self._found(missing, most)) is None:
            most *= 2
        low, high = most // 2, most
        while high - low > 1:
            middle = (low + high) // 2
            found = self._found(missing, middle)
            low, high, taken = (middle, high, taken) if found is None else (low, middle, found)
        return self._given(taken)

    def _always_from(self) -> float:
        """From which shortfall on all are possible; ∞ where even all devices together are no J."""
        range_of, above = self._whole - self._fleet.floor, self._top - self._whole
        needed, cost = len(self._fleet.micro) - 1.0, 0.0
        for kind in np.lexsort((-range_of, above)):
            if needed <= 0:
                break
            if range_of[kind] > 0:
                devices = min(self._fleet.count[kind], math.ceil(needed / range_of[kind]))
                needed -= devices * range_of[kind]
                cost += devices * above[kind]
        return float(cost) if needed <= 0 else math.inf

    def _kinds(self, most: int) -> dict[_Less, list[int]]:
        """The devices by what they can do less, up to `most`."""
        kinds: dict[_Less, list[int]] = {}
        range_of = np.minimum(self._top - self._fleet.floor, most)
        starts = self._top - self._fleet.micro[:, None] * self._micro
        less = []
        for kind in range(len(self._top)):
            within = int(range_of[kind])
            of_k = [(k + 1, int(start)) for k, start in enumerate(starts[:, kind])]
            # The top itself is nothing less: the progression that starts there goes on from its next term.
            firsts = tuple((k, start or k) for k, start in of_k if (start or k) <= within)
            less.append(_Less(within, firsts))
        for device in np.argsort(self._fleet.kind_of, kind="stable").tolist():
            its = less[self._fleet.kind_of[device]]
            if its.starts:
                kinds.setdefault(its, []).append(device)
        return {key: kinds[key] for key in sorted(kinds, key=lambda key: (key.most, key.starts))}

    def _found(self, missing: int, most: int) -> list[tuple[int, int]] | None:
        """(device, granules less), none by more than `most`, that sum to what is missing; None where none do."""
        mask = (2 << missing) - 1
        reached, before = 1, []
        for less, devices in self._kinds(most).items():
            for device in reversed(devices):
                together = less.added(reached) & mask
                if together == reached:
                    break
                before.append((device, less, reached))
                reached = together
                if reached >> missing:
                    return _traced(before, missing)
        return None

    def _given(self, taken: list[tuple[int, int]]) -> Floats:
        units: Floats = self._top[self._fleet.kind_of]
        for device, less in taken:
            units[device] -= less
        return units


def _traced(before: list[tuple[int, _Less, int]], missing: int) -> list[tuple[int, int]]:
    """Who does how much less, from the sets that were reached before each device, the last first."""
    taken = []
    for device, less, reached in reversed(before):
        if not reached >> missing & 1:
            part = min(d for d in less.each() if d <= missing and reached >> (missing - d) & 1)
            taken.append((device, part))
            missing -= part
    return taken
