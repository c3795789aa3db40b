"""How much each device has done by a deadline: the step times of many devices at once, and their
inverse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpubalance.planning.model import Line
from gpubalance.planning.problem import Load

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.intp]

# Rounding makes equal times and values differ by at most this fraction.
TIE = 1e-12

_SIZES = 32
# A fraction of a granule, larger than the rounding of a division.
_ROUNDED = 1e-6
_ALL = slice(None)


class Fleet:
    """Devices for the solver, in granules of `multiple` samples. Equal devices form one kind, with
    a `count`.

    Kinds are sorted by their properties, so that the order of the devices does not matter. A
    required device has one granule as its `floor`.

    In micro-batches of m granules, u granules take q·t(m) + t(u − q·m) seconds with q = ⌈u/m⌉ − 1,
    and the update: t is the device's model, which never falls; the engine takes the remainder
    first. m may be the limit, a measured batch, or one of 32 equal parts of the limit, rounded up.
    d(u) is the least time of u granules or more with any m that needs at most K micro-batches. No
    device does more than `most` granules.
    """

    def __init__(
        self,
        loads: Sequence[Load],
        *,
        multiple: int = 1,
        micro_batches: int = 1,
        most: float = np.inf,
    ) -> None:
        keys = [
            (
                _sizes(load, multiple, micro_batches),
                _pieces(load, multiple),
                load.update_s,
                load.required,
            )
            for load in loads
        ]
        kinds = sorted(set(keys))
        number = {key: kind for kind, key in enumerate(kinds)}
        self.kind_of = np.array([number[key] for key in keys], dtype=np.intp)
        self.count = np.bincount(self.kind_of).astype(float)
        sizes, pieces, updates, required = zip(*kinds, strict=True)
        self.update_s, self.floor = np.array(updates), np.array(required, dtype=float)
        self._begins, self._low_s, self._slope_s = _table(pieces, (np.inf, np.inf, 0.0))
        self._micro_batches = micro_batches
        self._sizes = _table(sizes, 0.0)
        self._sizes_s = np.array([self.piece_s(size) - self.update_s for size in self._sizes])
        self.limit: Floats = self._sizes[0]
        self.largest: Floats = np.minimum(self.limit * micro_batches, most)
        there = self._sizes.T > 0
        there[:, 0] = True  # a size of 0 for a device that can do nothing
        self._kind, column = np.nonzero(there)  # of each size, by kind
        self._size, self._size_s = (
            self._sizes[column, self._kind],
            self._sizes_s[column, self._kind],
        )
        self.width = len(self._kind)

    def piece_s(self, units: Floats, kinds: Ints | slice = _ALL) -> Floats:
        """Seconds of so many granules each as the last micro-batch or the only one: t(u) and the
        update.
        """
        return self._in_piece_s(units, self._piece(self._begins, units, kinds))

    def _piece(
        self, begins: Floats, reached: Floats, kinds: Ints | slice, moved: Floats | float = 0.0
    ) -> Ints | slice:
        """The last piece that begins before what each kind has reached, as an index into the flat
        table, by bisection.

        `begins` is in granules or in seconds. Every piece begins `moved` later than the table says.
        """
        if len(begins) == 1:
            return kinds
        at = np.arange(len(self.count))[kinds]
        step = begins.size // 2
        while step >= len(self.count):
            at = at + step * (begins.ravel()[at + step] + moved < reached)
            step //= 2
        return at

    def _in_piece_s(self, units: Floats, at: Ints | slice) -> Floats:
        """Seconds of so many granules, which lie in the pieces `at`."""
        time_s: Floats = units - self._begins.ravel()[at]
        time_s *= self._slope_s.ravel()[at]
        time_s += self._low_s.ravel()[at]
        return time_s

    def _units_in(
        self, deadlines_s: Floats, begun_s: Floats | float = 0.0, kinds: Ints | slice = _ALL
    ) -> Floats:
        """The most granules, up to the limit, that are done by a deadline if they begin at
        `begun_s`.

        They are the last micro-batch. A division gives almost the number, if anything one too many:
        so t itself decides whether the last one is in time.
        """
        after_s = np.nextafter(deadlines_s, np.inf)
        at = self._piece(self._low_s, after_s, kinds, begun_s)
        with np.errstate(all="ignore"):  # a flat piece: all of it
            units = (after_s - (begun_s + self._low_s.ravel()[at])) / self._slope_s.ravel()[at]
        units += self._begins.ravel()[at] + _ROUNDED
        units = np.floor(np.minimum(np.fmax(units, 0.0), self.limit[kinds]))
        done: Floats = units - ((begun_s + self._in_piece_s(units, at) > deadlines_s) & (units > 0))
        return done

    def time_s(self, units: Floats, kinds: Ints) -> Floats:
        """d(u) for so many granules of each kind, up to the kind's `largest`."""
        if self._micro_batches == 1:
            return self.piece_s(units, kinds)
        least: Floats = np.full(units.shape, np.inf)
        for sizes in self._sizes:
            some = np.nonzero(units <= self._micro_batches * sizes[kinds])[0]
            times = self.pieces_s(units[some], sizes[kinds[some]], kinds[some])
            least[some] = np.minimum(least[some], times)
        return least

    def pieces_s(self, units: Floats, size: Floats, kinds: Ints) -> Floats:
        """Seconds of u granules in micro-batches of that size, with the update."""
        full = np.ceil(units / size) - 1
        full_s = self.piece_s(size, kinds) - self.update_s[kinds]
        time_s: Floats = full * full_s + self.piece_s(units - full * size, kinds)
        return time_s

    def micro_batches(self, units: Floats, deadline_s: float) -> tuple[Floats, Floats]:
        """The micro-batch of each device for so many granules, and the seconds that they take with
        the update.

        It makes the fewest micro-batches that keep the deadline, as even as they can be in no more
        time.
        """
        kinds = self.kind_of
        chosen, times = np.zeros(len(units)), np.zeros(len(units))
        for sizes in [units, *self._sizes[:, kinds]]:
            size = np.minimum(sizes, self.limit[kinds]).clip(1)
            time_s = self.pieces_s(units, size, kinds)
            even = np.maximum(1, np.ceil(units / np.ceil(units / size).clip(1)))
            even_s = self.pieces_s(units, even, kinds)
            as_soon = even_s <= time_s * (1 + TIE)
            able = (
                (chosen == 0)
                & (units > 0)
                & (units <= self._micro_batches * size)
                & (time_s <= deadline_s)
            )
            chosen = np.where(able, np.where(as_soon, even, size), chosen)
            times = np.where(able, np.where(as_soon, even_s, time_s), times)
        return chosen, times

    def most(self, deadlines_s: Floats) -> Floats:
        """F(T), the most that each kind has done by a deadline, at [T, kind]: full micro-batches
        and a remainder.
        """
        deadlines_s = deadlines_s[:, None]
        if self._micro_batches == 1:
            units = self._units_in(deadlines_s)
        else:
            # If anything one full one too few: the last micro-batch, which the update follows, may
            # be as large.
            left_s = (deadlines_s - self.update_s[self._kind]) * (1 - _ROUNDED)
            full = np.floor(left_s / np.where(self._size > 0, self._size_s, np.inf)).clip(0)
            last = self._units_in(deadlines_s, full * self._size_s, self._kind)
            each = full * self._size + np.minimum(last, self._size)
            each = np.minimum(each, self._micro_batches * self._size)
            units = np.maximum.reduceat(
                each, np.searchsorted(self._kind, np.arange(len(self.count))), axis=1
            )
        done: Floats = np.clip(units, self.floor, self.largest)
        return done

    @property
    def required(self) -> float:
        """How many devices must get samples."""
        return float(self.count @ self.floor)

    @property
    def may_be_alone(self) -> NDArray[np.bool_]:
        """The kinds of which one device may do the whole step: those able to do a granule and all
        that is required.
        """
        able: NDArray[np.bool_] = (self.limit >= 1) & (self.floor == self.required)
        return able

    @property
    def first_s(self) -> float:
        """When the first granule can be done, or the last of the required devices' first ones; ∞ if
        never.
        """
        begun_s = np.where(self.limit >= 1, self.piece_s(np.ones(len(self.count))), np.inf)
        return float(begun_s[self.floor > 0].max() if self.required else begun_s.min())

    @property
    def last_s(self) -> float:
        """When all devices have done the most that they may be given."""
        able = np.nonzero(self.limit >= 1)[0]
        return float(self.time_s(self.largest[able], able).max(initial=0.0))


def _pieces(load: Load, multiple: int) -> tuple[tuple[float, float, float], ...]:
    """A device's straight pieces: the granules at which one begins, its seconds there, and those of
    a granule more.

    They include the update, so that a deadline is compared with one sum, and no rounding of a
    difference decides.
    """
    pieces = load.model.pieces
    return tuple(
        (begin / multiple, low_s + load.update_s, slope_s * multiple)
        for begin, low_s, slope_s in pieces
    )


def _sizes(load: Load, multiple: int, micro_batches: int) -> tuple[float, ...]:
    """The micro-batches that a device may be given, in granules, the largest first. On a line the
    limit is best.
    """
    limit = load.limit // multiple
    if isinstance(load.model, Line) or micro_batches == 1:
        return (limit,)
    sizes = {math.ceil(limit * part / _SIZES) for part in range(1, _SIZES + 1)}
    sizes |= {batch // multiple for batch in load.model.batches}
    return tuple(sorted((size for size in {limit, *sizes} if size <= limit), reverse=True))


def _table(rows: Sequence[Sequence[Any]], fill: Any) -> Floats:
    """Rows of different lengths as a transposed array, padded to a power of two with `fill`."""
    most = 1 << (max(map(len, rows)) - 1).bit_length()
    return np.ascontiguousarray(
        np.array([[*row, *[fill] * (most - len(row))] for row in rows], dtype=float).T
    )
