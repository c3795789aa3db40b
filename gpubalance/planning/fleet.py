"""How much each device has done by a deadline: the step times of many devices at once, and their inverse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpubalance.planning.model import Curve, Line
from gpubalance.planning.problem import Load

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.intp]

# What rounding can make of equal times and values.
TIE = 1e-12

_ALL = slice(None)
_SIZES = 32


class Fleet:
    """Devices for the solver, in granules of `multiple` samples. Equal devices are one kind, which has a `count`.

    Kinds are sorted by what they are, so that nothing depends on the order of the devices. A device that is `required`
    is a kind of its own, with a granule as its `floor`.

    In micro-batches of m granules, u of them take q·t(m) + t(u − q·m) seconds with q = ⌈u/m⌉ − 1: t is the device's
    model, and the engine takes what is left first. m may be the limit. It may also be a batch that was measured, or one
    of 32 equal parts of the limit, rounded up, where that has a higher throughput than all larger ones. c(u) is the
    least over these with u ≤ K·m. With each m a granule less takes no longer, so c never falls. No device does more
    than `most` granules.
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
        sizes_of = _sizes if micro_batches > 1 else _limit
        keys = [
            (sizes_of(load, multiple), _pieces(load.model, multiple), i == required) for i, load in enumerate(loads)
        ]
        kinds = sorted(set(keys))
        number = {key: kind for kind, key in enumerate(kinds)}
        self.kind_of = np.array([number[key] for key in keys], dtype=np.intp)
        self.count = np.bincount(self.kind_of).astype(float)
        self.floor = np.array([float(of[2]) for of in kinds])
        self._multiple = multiple
        self._micro_batches = micro_batches
        self._begins, self._base_s, self._slope_s = _table([pieces for _, pieces, _ in kinds], (np.inf, 0.0, 0.0))
        size_table = _table([sizes for sizes, _, _ in kinds], 0.0)
        self.limit: Floats = size_table[0]
        self.largest: Floats = np.minimum(self.limit * micro_batches, most)
        self._sizes = [(size, self.piece_s(size)) for size in size_table]

    def piece_s(self, units: Floats, kinds: Ints | slice = _ALL) -> Floats:
        """t(u) of so many granules each."""
        base_s, slope_s = self._base_s[0, kinds], self._slope_s[0, kinds]
        if len(self._begins) > 1:
            at = np.broadcast_to(np.arange(len(self.count))[kinds], units.shape).copy()
            for begins in self._begins[1:]:
                at += len(self.count) * (begins[kinds] < units)
            base_s, slope_s = self._base_s.ravel()[at], self._slope_s.ravel()[at]
        time_s: Floats = slope_s * units
        time_s += base_s
        return time_s

    def time_s(self, units: Floats, kinds: Ints | slice = _ALL) -> Floats:
        """c(u) of so many granules each, up to the kinds' `largest`."""
        if self._micro_batches == 1:
            return self.piece_s(units, kinds)
        least: Floats = np.full(units.shape, np.inf)
        for sizes, size_s in self._sizes:
            able, size = self._able(units, sizes[kinds])
            full = np.ceil(units / size) - 1
            times = full * size_s[kinds] + self.piece_s(units - full * size, kinds)
            np.minimum(least, times, out=least, where=able)
        return least

    def _able(self, units: Floats, sizes: Floats) -> tuple[NDArray[np.bool_], Floats]:
        """Where u granules are few enough for a size; and the size, 1 where there is none."""
        return units <= self._micro_batches * sizes, np.maximum(sizes, 1)

    def pieces_s(self, units: Floats, size: Floats, kinds: Ints | slice = _ALL) -> Floats:
        """Seconds of u granules in micro-batches of a size."""
        full = np.ceil(units / size) - 1
        return full * self.piece_s(size, kinds) + self.piece_s(units - full * size, kinds)

    def micro_batches(self, units: Floats, deadline_s: float) -> tuple[Floats, Floats]:
        """The micro-batch of each device for so many granules, and the seconds they take.

        The fewest micro-batches that keep the deadline, and as even as they can be without another time.
        """
        kinds = self.kind_of
        chosen, times = np.zeros(len(units)), np.zeros(len(units))
        for sizes in [units, *(size[kinds] for size, _ in self._sizes)]:
            able, size = self._able(units, np.minimum(sizes, self.limit[kinds]))
            time_s = self.pieces_s(units, size, kinds)
            even = np.maximum(1, np.ceil(units / np.ceil(units / size).clip(1)))
            even_s = self.pieces_s(units, even, kinds)
            as_long = np.abs(even_s - time_s) <= TIE * time_s
            able &= (chosen == 0) & (units > 0) & (time_s <= deadline_s)
            chosen = np.where(able, np.where(as_long, even, size), chosen)
            times = np.where(able, np.where(as_long, even_s, time_s), times)
        return chosen, times

    def most(self, deadlines_s: Floats, low: Floats | float = 0.0, high: Floats | None = None) -> Floats:
        """F(T), the most that each kind has done by a deadline, at [..., kind], if it is from `low` to `high`."""
        deadlines_s = deadlines_s[..., None]
        shape = (*deadlines_s.shape[:-1], len(self.count))
        low, high = np.broadcast_to(low, shape), np.broadcast_to(self.largest if high is None else high, shape)
        while (low < high).any():
            middle = np.ceil((low + high) / 2)
            in_time = self.time_s(middle) <= deadlines_s
            low, high = np.where(in_time, middle, low), np.where(in_time, high, middle - 1)
        done: Floats = np.maximum(low, self.floor)
        return done

    @property
    def may_be_alone(self) -> NDArray[np.bool_]:
        """The kinds of which one device may have all: those that can do a granule; only the required one, if any is."""
        able: NDArray[np.bool_] = (self.limit >= 1) & (self.floor == self.floor.max())
        return able

    @property
    def first_s(self) -> float:
        """When the first granule is done, or that of the device that is required; ∞ if there is none."""
        return float(self.piece_s(np.ones(len(self.count)))[self.may_be_alone].min(initial=np.inf))

    @property
    def last_s(self) -> float:
        """When all have done all that they may be given."""
        return float(self.time_s(self.largest)[self.limit >= 1].max(initial=0.0))


def _limit(load: Load, multiple: int) -> tuple[float, ...]:
    return (load.limit // multiple,)


def _sizes(load: Load, multiple: int) -> tuple[float, ...]:
    """The micro-batches that a device may be given, in granules, the largest first."""
    limit = load.limit // multiple
    if isinstance(load.model, Line):
        return (limit,)
    sizes = {math.ceil(limit * part / _SIZES) for part in range(1, _SIZES + 1)}
    sizes |= {batch // multiple for batch in load.model.batches}
    faster, best = [limit], 0.0
    for size in sorted((size for size in sizes if 0 < size <= limit), reverse=True):
        rate = size / load.model.step_time_s(size * multiple)
        if rate > best:
            faster, best = [*faster, size] if size < limit else faster, rate
    return tuple(faster)


def _pieces(model: Line | Curve, multiple: int) -> tuple[tuple[float, float, float], ...]:
    """(begin, base, slope) of each straight piece, which is base + slope · u seconds for u granules above `begin`."""
    if isinstance(model, Line):
        return ((0.0, model.alpha_s, model.beta_s * multiple),)
    slopes = [(left, low, (high - low) / (right - left)) for (left, low), (right, high) in pairwise(model.knots)]
    return tuple((left / multiple, low - slope * left, slope * multiple) for left, low, slope in slopes)


def _table(rows: Sequence[Sequence[Any]], fill: Any) -> Floats:
    """Rows of unlike lengths as an array, filled up, with its axes turned round."""
    most = max(map(len, rows))
    return np.ascontiguousarray(np.array([[*row, *[fill] * (most - len(row))] for row in rows], dtype=float).T)
