"""Judges a figure against a bound: measures on until its 95 % interval is clear of the bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from gpubalance.numbers.stats import interval95, median

Decision = Literal["met", "missed", "not decided"]

_LEAST = 3  # for an interval
_Z = 1.96


class Wanted(NamedTuple):
    """A lower bound, or an upper one if `at_most`."""

    bound: float
    at_most: bool = False

    def decision(self, low: float, high: float) -> Decision:
        """Whether a figure with this interval meets or misses the bound, or neither yet."""
        if low >= self.bound:
            return "missed" if self.at_most else "met"
        if high <= self.bound:
            return "met" if self.at_most else "missed"
        return "not decided"

    def __str__(self) -> str:
        return f"{'at most' if self.at_most else 'at least'} {self.bound:g}"


class Within(NamedTuple):
    """Two bounds."""

    least: float
    most: float

    def decision(self, low: float, high: float) -> Decision:
        """Whether a figure with this interval is between the bounds or outside, or neither yet."""
        if self.least <= low and high <= self.most:
            return "met"
        return "missed" if high < self.least or low > self.most else "not decided"

    def __str__(self) -> str:
        return f"{self.least:g} to {self.most:g}"


def judged(ratios: Iterator[float], wanted: Wanted | Within, most: int) -> str:
    """Takes up to `most` ratios until their median meets or misses what is wanted; looks after 3, 6, 12, …

    It does not look after each one, as one who does sooner or later sees what they want to see.
    """
    taken: list[float] = []
    decision: Decision = "not decided"
    look = _LEAST
    while decision == "not decided" and len(taken) < most:
        taken += [next(ratios) for _ in range(min(look, most) - len(taken))]
        decision, look = wanted.decision(*(interval95(taken) or (-math.inf, math.inf))), 2 * look
    low, high = interval95(taken) or (math.nan, math.nan)
    return f"{median(taken):.3f} (95 %: {low:.3f} to {high:.3f}), {len(taken)} times; wanted {wanted}: {decision}"


@dataclass(frozen=True)
class Share:
    """A count out of a total."""

    count: int
    of: int

    def __add__(self, other: Share) -> Share:
        return Share(self.count + other.count, self.of + other.of)

    @property
    def part(self) -> float:
        """The share as a fraction."""
        return self.count / self.of

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's (1927) 95 % interval of the fraction."""
        spread = _Z**2 / self.of
        middle = self.part + spread / 2
        half = _Z * math.sqrt(self.part * (1 - self.part) / self.of + spread / self.of / 4)
        return (middle - half) / (1 + spread), (middle + half) / (1 + spread)


def judged_shares(draw: Callable[[int], Sequence[Share]], wanted: Sequence[Wanted], most: int) -> list[str]:
    """Adds shares from `draw(n)`, n = 0, 1, …, up to `most` draws, until each meets or misses what is wanted."""
    shares, drawn = draw(0), 1
    while drawn < most and "not decided" in _decisions(shares, wanted):
        for number in range(drawn, min(most, 2 * drawn)):
            shares = [a + b for a, b in zip(shares, draw(number), strict=True)]
        drawn = min(most, 2 * drawn)
    return [
        f"{share.part:.1%} of {share.of} ({decision})"
        for share, decision in zip(shares, _decisions(shares, wanted), strict=True)
    ]


def _decisions(shares: Sequence[Share], wanted: Sequence[Wanted]) -> list[Decision]:
    return [one.decision(*share.interval) for share, one in zip(shares, wanted, strict=True)]
