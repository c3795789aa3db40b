"""How large a batch fits: what measured memory predicts, and how the two ends of a search are brought together.

Pure, with no process, clock or TensorFlow in it. `planning/search.py` stands on it.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

_WELL_BELOW = Fraction(3, 4)  # of the batch above it
_LEAST_ERROR = Fraction(1, 4)  # of the last error: what an allocator rounds does not vanish near a measured batch
_SPARE_TRIES = 5

Points = Sequence[tuple[int, int]]  # (batch, peak bytes), by batch


@dataclass(frozen=True)
class MemoryCurve:
    """Memory from the largest measured batch on: peak + slope · d + bend · d · (d + gap), for d samples more.

    That is Newton's polynomial through the largest batch and two smaller ones, `gap` between the largest and the
    second. A downward bend is left out: where memory rises ever less, as after a workspace's plateau, the line is
    above it. So it rather asks for too much than for too little.
    """

    batch: int
    peak_bytes: int
    slope: Fraction
    bend: Fraction
    gap: int

    @classmethod
    def through(cls, points: Points, memory_bytes: int) -> MemoryCurve | None:
        """The curve of some points; None with fewer than two, or where memory does not rise.

        Fractions keep exactly linear memory exact.
        """
        chosen = _well_apart(points, memory_bytes)
        if len(chosen) < 2:
            return None
        (large, high), (middle, low), *rest = chosen
        slope = Fraction(high - low, large - middle)
        bend = Fraction(0)
        for small, lowest in rest:
            bend = (slope - Fraction(low - lowest, middle - small)) / (large - small)
        return cls(large, high, slope, max(bend, Fraction(0)), large - middle) if slope > 0 else None

    def at(self, batch: int) -> Fraction:
        """The bytes that a batch takes."""
        more = batch - self.batch
        return self.peak_bytes + self.slope * more + (self.bend * more * (more + self.gap) if more > 0 else 0)

    def largest_within(self, memory_bytes: int) -> int:
        """The largest batch that the curve puts within the memory; below 1 where there is none."""
        by_line = self.batch + math.floor((memory_bytes - self.peak_bytes) / self.slope)
        return _last_within(self.at, memory_bytes, self.batch, by_line) if self.bend else by_line


def _well_apart(points: Points, memory_bytes: int) -> list[tuple[int, int]]:
    """Up to three of the points, the largest first, each the nearest that is well below the one before it.

    Small batches hide the slope behind workspaces, and near ones behind the allocator's rounding. So well below is a
    quarter, or half as many bytes as the memory still has to go: near the limit, near ones will do.
    """
    chosen = list(points[-1:])
    left = memory_bytes - chosen[0][1] if chosen else 0
    while len(chosen) < 3 and (below := [point for point in points if point[0] < chosen[-1][0]] if chosen else []):
        batch, peak = chosen[-1]
        far = [p for p in below if p[0] <= batch * _WELL_BELOW or peak - p[1] >= left / 2 > 0]
        chosen.append(far[-1] if far else below[0])
    return chosen


def _last_within(bytes_of: Callable[[int], Fraction], memory_bytes: int, low: int, high: int) -> int:
    """The largest batch from `low` to `high` within the memory, by a rising function; `high` where that is below."""
    if high <= low:
        return high
    return low + bisect.bisect_right(range(low + 1, high + 1), Fraction(memory_bytes), key=bytes_of)


@dataclass(frozen=True)
class Forecast:
    """What measured memory says of the batch limit, in batches.

    `best` is the largest that fits by the curve; `sure` the largest that fits even if the curve errs as it did at the
    last measured batch; `doubt` the first that fails even then. `proven` where such an error is known, and small.
    """

    sure: int
    best: int
    doubt: int
    proven: bool


def forecast(points: Points, memory_bytes: int) -> Forecast | None:
    """What the points say, in order of their batches; None where they have no curve.

    The error is by how much the largest batch missed the curve of those below it. It grows with the third power of
    the distance, as the remainder of a polynomial of degree two does, and never falls below a quarter.
    """
    curve = MemoryCurve.through(points, memory_bytes)
    if curve is None:
        return None
    best = curve.largest_within(memory_bytes)
    earlier = MemoryCurve.through(points[:-1], memory_bytes)
    if earlier is None:
        return Forecast(best, best, best + 1, proven=False)
    error = abs(earlier.at(curve.batch) - curve.peak_bytes)
    stride = curve.batch - earlier.batch

    def at_worst(batch: int) -> Fraction:
        return curve.at(batch) + error * max(_LEAST_ERROR, Fraction(batch - curve.batch, stride) ** 3)

    sure = _last_within(at_worst, memory_bytes, curve.batch, best)
    doubt = curve.largest_within(memory_bytes + math.ceil(error)) + 1
    return Forecast(sure, best, doubt, proven=16 * (best - sure) <= best - curve.batch)


def predict_limit(points: Points, memory_bytes: int) -> int | None:
    """The largest batch that a line through two or more (batch, bytes) points puts within the memory.

    The slope is that between the two largest batches: small ones hide it behind workspaces. None where it does not
    rise.
    """
    curve = MemoryCurve.through(sorted(points)[-2:], memory_bytes)
    return None if curve is None else curve.largest_within(memory_bytes)


class Bracket:
    """Two ends that a search brings together: `low` fits, `high` does not, or is None as long as nothing failed.

    What is wished for is tried, or the nearest to it that keeps the search short, whatever the memory is like:

    - open, the n-th try is at least 2ⁿ⁻⁶ above the start: after ⌈log₂ top⌉ + 6 tries at most, `low` is at the top or
      the bracket is closed;
    - closed with its ends N apart, ⌈log₂ N⌉ + 5 tries at most make them neighbours: bisection's worst case and five.
      With t tries left each part of the bracket must be at most 2ᵗ⁻¹ wide. That leaves a choice as long as N ≤ 2ᵗ,
      and keeps it so (the projection of the ITP method: Oliveira and Takahashi 2020, doi:10.1145/3423597). Tries
      that good guesses saved are not kept for later.
    """

    def __init__(self, low: int, high: int | None = None) -> None:
        self.low = low
        self.high = high
        self._start = low
        self._fitted = 0
        self._left = 0 if high is None else _most_tries(low, high)

    @property
    def joined(self) -> bool:
        """Whether the ends are neighbours."""
        return self.high is not None and self.high - self.low <= 1

    def contains(self, wish: int) -> bool:
        """Whether a wish is between the ends."""
        return self.low < wish and (self.high is None or wish < self.high)

    def nearest(self, wish: int) -> int:
        """What to try: the nearest to the wish that is allowed."""
        if self.high is None:
            return max(wish, self.low + 1, self._start + ((1 << self._fitted) >> _SPARE_TRIES))
        widest = 1 << max(0, self._left - 1)
        return min(max(wish, self.low + 1, self.high - widest), self.high - 1, self.low + widest)

    def tell(self, tried: int, fits: bool) -> None:
        """Moves one end to what was tried."""
        was_open = self.high is None
        if fits:
            self.low = tried
            self._fitted += 1
        else:
            self.high = tried
        if self.high is not None:
            most = _most_tries(self.low, self.high)
            self._left = most if was_open else min(self._left - 1, most)


def _most_tries(low: int, high: int) -> int:
    return (high - low - 1).bit_length() + _SPARE_TRIES


def largest_that_fits(
    fits: Callable[[int], bool], *, low: int, high: int, guess: int | None = None, tolerance: float = 0.0
) -> int:
    """The largest batch b in [low, high) for which `fits(b)`, given that `low` fits and `high` does not.

    Tries the guess first, and then just above it or just below: a right guess takes two tries. Then bisects until the
    ends are neighbours, or within `tolerance` of each other. Assumes that what fits, fits when smaller.
    """
    bracket = Bracket(low, high)
    wishes = [] if guess is None else [guess, guess + 1]
    while high - low > max(1, tolerance * low):
        wish = wishes.pop(0) if wishes else (low + high) // 2
        if bracket.contains(wish):
            batch = bracket.nearest(wish)
            bracket.tell(batch, fits(batch))
            low, high = bracket.low, bracket.high or high
    return low
