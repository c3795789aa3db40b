"""How much each device has done by a deadline: the step times of many devices at once, and their inverse."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpubalance.planning.model import Line
from gpubalance.planning.pieces import ALL, Floats, Ints, Pieces, straight, table
from gpubalance.planning.problem import Load

# Rounding makes equal times and values differ by at most this fraction.
TIE = 1e-12

_SIZES = 32
# A fraction of a granule, larger than the rounding of a division.
_ROUNDED = 1e-6


class Fleet:
    """Devices for the solver, in granules of `multiple` samples. Equal devices form one kind, with a `count`.

    Kinds are sorted by their properties, so that the order of the devices does not matter. A `required` device is a
    kind of its own, with one granule as its `floor`.

    In micro-batches of m granules, u granules take q·t(m) + t(u − q·m) seconds with q = ⌈u/m⌉ − 1, and the update: t is
    the device's model; the engine takes the remainder first. m may be the limit, a measured batch, or one of 32 equal
    parts of the limit, rounded up: where t is no line, a small remainder may take as long as a large one. d(u) is the
    least time of u granules or more with any m that needs at most K micro-batches. If t never falls, every smaller
    number of granules is done by then too; otherwise see `in_time`. No device does more than `most` granules.
    """

    def __init__(
        self,
        loads: Sequence[Load],
        *,
        multiple: int = 1,
        micro_batches: int = 1,
        most: float = np.inf,
        required: int | None = None,
    ) -> None:
        keys = [
            (_sizes(load, multiple, micro_batches), *straight(load, multiple), load.update_s, i == required)
            for i, load in enumerate(loads)
        ]
        kinds = sorted(set(keys))
        number = {key: kind for kind, key in enumerate(kinds)}
        self.kind_of = np.array([number[key] for key in keys], dtype=np.intp)
        self.count = np.bincount(self.kind_of).astype(float)
        _, pieces, least, updates, floors = zip(*kinds, strict=True)
        self.update_s, self.floor = np.array(updates), np.array(floors, dtype=float)
        self.falls = pieces != least
        self._pieces, self._least = Pieces(pieces), Pieces(least)
        self._micro_batches = micro_batches
        self._sizes = table([sizes for sizes, *_ in kinds], 0.0)
        for size in self._sizes:
            size[self._pieces.time_s(size) > self._least.time_s(size) * (1 + TIE)] = 0.0  # a larger one is faster
        self._sizes_s = np.array([self._pieces.time_s(size) - self.update_s for size in self._sizes])
        self.limit: Floats = self._sizes[0]
        self.largest: Floats = np.minimum(self.limit * micro_batches, most)
        there = self._sizes.T > 0
        there[:, 0] = True  # a size of 0 for a device that can do nothing
        self._kind, column = np.nonzero(there)  # of each size, by kind
        self._size, self._size_s = self._sizes[column, self._kind], self._sizes_s[column, self._kind]
        self.width = len(self._kind)

    def piece_s(self, units: Floats, kinds: Ints | slice = ALL) -> Floats:
        """Seconds of so many granules each as the last micro-batch or the only one: t(u) and the update."""
        return self._pieces.time_s(units, kinds)

    def _units_in(self, deadlines_s: Floats, begun_s: Floats | float = 0.0, kinds: Ints | slice = ALL) -> Floats:
        """The most granules, up to the limit, that are done by a deadline if they begin at `begun_s`.

        They are the last micro-batch. A division gives almost the number, if anything one too many: so t itself decides
        whether the last one is in time.
        """
        least, after_s = self._least, np.nextafter(deadlines_s, np.inf)
        at = least.at(least.low_s, after_s, kinds, begun_s)
        with np.errstate(all="ignore"):  # a flat piece: all of it
            units = (after_s - (begun_s + least.low_s.ravel()[at])) / least.slope_s.ravel()[at]
        units += least.begins.ravel()[at] + _ROUNDED
        units = np.floor(np.minimum(np.fmax(units, 0.0), self.limit[kinds]))
        done: Floats = units - ((begun_s + least.within_s(units, at) > deadlines_s) & (units > 0))
        return done

    def time_s(self, units: Floats, kinds: Ints) -> Floats:
        """d(u) for so many granules of each kind, up to the kind's `largest`."""
        if self._micro_batches == 1:
            return self._least.time_s(units, kinds)
        least: Floats = np.full(units.shape, np.inf)
        for sizes, size_s in zip(self._sizes, self._sizes_s, strict=True):
            some = np.nonzero(units <= self._micro_batches * sizes[kinds])[0]
            its, of = units[some], kinds[some]
            full = np.ceil(its / sizes[of]) - 1
            times = full * size_s[of] + self._least.time_s(its - full * sizes[of], of)
            least[some] = np.minimum(least[some], times)
        return least

    def pieces_s(self, units: Floats, size: Floats, kinds: Ints | slice = ALL) -> Floats:
        """Seconds of u granules in micro-batches of that size, with the update."""
        full = np.ceil(units / size) - 1
        time_s: Floats = full * (self.piece_s(size, kinds) - self.update_s[kinds]) + self.piece_s(
            units - full * size, kinds
        )
        return time_s

    def in_time(self, units: Floats, deadline_s: float, kinds: Ints) -> NDArray[np.bool_]:
        """Whether exactly so many granules of each kind are done by a deadline: more may be done when fewer are not."""
        done: NDArray[np.bool_] = (units == 0) | (self.micro_batches(units, deadline_s, kinds)[0] > 0)
        return done

    def micro_batches(self, units: Floats, deadline_s: float, kinds: Ints) -> tuple[Floats, Floats]:
        """The micro-batch of each kind for so many granules, and the seconds that they take with the update.

        It makes the fewest micro-batches that keep the deadline, as even as they can be in no more time; 0 if none do.
        """
        chosen, times = np.zeros(len(units)), np.zeros(len(units))
        for sizes in [units, *self._sizes[:, kinds]]:
            size = np.minimum(sizes, self.limit[kinds]).clip(1)
            time_s = self.pieces_s(units, size, kinds)
            even = np.maximum(1, np.ceil(units / np.ceil(units / size).clip(1)))
            even_s = self.pieces_s(units, even, kinds)
            as_soon = even_s <= time_s * (1 + TIE)
            able = (chosen == 0) & (units > 0) & (units <= self._micro_batches * size) & (time_s <= deadline_s)
            chosen = np.where(able, np.where(as_soon, even, size), chosen)
            times = np.where(able, np.where(as_soon, even_s, time_s), times)
        return chosen, times

    def most(self, deadlines_s: Floats) -> Floats:
        """F(T), the most that each kind has done by a deadline, at [T, kind]: full micro-batches and a remainder."""
        deadlines_s = deadlines_s[:, None]
        if self._micro_batches == 1:
            units = self._units_in(deadlines_s)
        else:
            # If anything one full one too few: the last micro-batch, which the update follows, may be as large.
            left_s = (deadlines_s - self.update_s[self._kind]) * (1 - _ROUNDED)
            full = np.floor(left_s / np.where(self._size > 0, self._size_s, np.inf)).clip(0)
            last = self._units_in(deadlines_s, full * self._size_s, self._kind)
            each = full * self._size + np.minimum(last, self._size)
            each = np.minimum(each, self._micro_batches * self._size)
            units = np.maximum.reduceat(each, np.searchsorted(self._kind, np.arange(len(self.count))), axis=1)
        done: Floats = np.clip(units, self.floor, self.largest)
        return done

    @property
    def may_be_alone(self) -> NDArray[np.bool_]:
        """The kinds of which one device may do the whole step: those able to do a granule, or only the required one."""
        able: NDArray[np.bool_] = (self.limit >= 1) & (self.floor == self.floor.max())
        return able

    @property
    def first_s(self) -> float:
        """When the first granule can be done, or the required device's first; ∞ if none can."""
        return float(self._least.time_s(np.ones(len(self.count)))[self.may_be_alone].min(initial=np.inf))

    @property
    def last_s(self) -> float:
        """When all devices have done the most that they may be given."""
        able = np.nonzero(self.limit >= 1)[0]
        return float(self.time_s(self.largest[able], able).max(initial=0.0))


def _sizes(load: Load, multiple: int, micro_batches: int) -> tuple[float, ...]:
    """The micro-batches that a device may be given, in granules, the largest first. On a line the limit is best."""
    limit = load.limit // multiple
    if isinstance(load.model, Line) or micro_batches == 1:
        return (limit,)
    sizes = {math.ceil(limit * part / _SIZES) for part in range(1, _SIZES + 1)}
    sizes |= {batch // multiple for batch in load.model.batches}
    return tuple(sorted((size for size in {limit, *sizes} if size <= limit), reverse=True))
