"""Step times as straight pieces over granules: for one device, and for many in one table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpubalance.planning.model import Curve, Line
from gpubalance.planning.problem import Load

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.intp]

# (begin, low, slope): low + slope · (u − begin) seconds for u granules above `begin`.
Piece: TypeAlias = tuple[float, float, float]
# (batch, seconds): between two of these a step time is straight.
Knots: TypeAlias = Sequence[tuple[float, float]]

ALL = slice(None)


def straight(load: Load, multiple: int) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
    """A device's pieces in granules, and those of the least time for so many granules or more, up to its limit.

    They include the update, so that a deadline is compared with one sum, and no rounding of a difference decides.
    """
    model, update_s = load.model, load.update_s
    if isinstance(model, Line):
        line = ((0.0, model.alpha_s + update_s, model.beta_s * multiple),)
        return line, line
    if all(before <= after for before, after in pairwise(model.step_times_s)):
        rising = _between(model.knots, multiple, update_s)
        return rising, rising
    knots = _of_granules(model, load.limit // multiple, multiple)
    return _between(knots, multiple, update_s), _between(_least(knots, multiple), multiple, update_s)


def _between(knots: Knots, multiple: int, update_s: float) -> tuple[Piece, ...]:
    slopes = [(left, low, (high - low) / (right - left)) for (left, low), (right, high) in pairwise(knots)]
    return tuple((left / multiple, low + update_s, slope * multiple) for left, low, slope in slopes)


def _of_granules(curve: Curve, limit: int, multiple: int) -> Knots:
    """The knots of a curve at whole granules only: what lies between two of them has no effect."""
    beside = {at for batch in curve.batches for at in (batch // multiple, -(-batch // multiple))}
    sizes = sorted({1, *(at for at in (*beside, limit) if 1 <= at <= limit)})
    knots = [(size * multiple, curve.step_time_s(size * multiple)) for size in sizes]
    return [(0, knots[0][1]), *knots]


def _least(knots: Knots, multiple: int) -> Knots:
    """The knots with each time lowered to that of more samples if those are faster."""
    after = knots[-1][1]
    least = {knots[-1][0]: after}
    for (left, low), (right, high) in reversed(list(pairwise(knots))):
        if low < after < high:
            slope = (high - low) / (right - left)
            last = left + (after - low) / slope // multiple * multiple  # the last that takes less than any after it
            least |= {last + multiple: after, last: min(after, low + slope * (last - left))}
        after = min(after, low)
        least[left] = after
    return sorted(least.items())


class Pieces:
    """The pieces of many kinds of devices, as a table: times at [piece, kind]."""

    def __init__(self, rows: Sequence[Sequence[Piece]]) -> None:
        self._kinds = len(rows)
        self.begins, self.low_s, self.slope_s = table(rows, (np.inf, np.inf, 0.0))

    def at(
        self, begins: Floats, reached: Floats, kinds: Ints | slice = ALL, moved: Floats | float = 0.0
    ) -> Ints | slice:
        """The last piece that begins before what each kind has reached, as an index into the flat table, by bisection.

        `begins` is in granules or in seconds. Every piece begins `moved` later than the table says.
        """
        if len(begins) == 1:
            return kinds
        at = np.arange(self._kinds)[kinds]
        step = begins.size // 2
        while step >= self._kinds:
            at = at + step * (begins.ravel()[at + step] + moved < reached)
            step //= 2
        return at

    def within_s(self, units: Floats, at: Ints | slice) -> Floats:
        """Seconds of so many granules, which lie in the pieces `at`."""
        time_s: Floats = units - self.begins.ravel()[at]
        time_s *= self.slope_s.ravel()[at]
        time_s += self.low_s.ravel()[at]
        return time_s

    def time_s(self, units: Floats, kinds: Ints | slice = ALL) -> Floats:
        """Seconds of so many granules of each kind."""
        return self.within_s(units, self.at(self.begins, units, kinds))


def table(rows: Sequence[Sequence[Any]], fill: Any) -> Floats:
    """Rows of different lengths as a transposed array, padded to a power of two with `fill`."""
    most = 1 << (max(map(len, rows)) - 1).bit_length()
    return np.ascontiguousarray(np.array([[*row, *[fill] * (most - len(row))] for row in rows], dtype=float).T)
