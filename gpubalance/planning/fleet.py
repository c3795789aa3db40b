"""How much each device has done by a deadline: the step-time models of many devices, inverted exactly and at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpubalance.planning.model import Curve, Line

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.intp]
_Piece: TypeAlias = tuple[float, float, float, float, float, float, float]

# So many numbers at a time stay in the processor's cache.
_AT_ONCE = 1 << 17
_FLAT = 1e-100  # seconds a sample that are taken for 0 where one divides by them
_ALL = slice(None)
_ABSENT: _Piece = (np.inf, 0.0, 0.0, 0.0, 0.0, 1.0, np.inf)


@dataclass(frozen=True)
class Load:
    """A device: its step time over the batch, and the largest batch, in samples, that it may be given."""

    model: Line | Curve
    limit: int

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise ValueError(f"a batch limit of {self.limit}")
        if isinstance(self.model, Line):
            if min(self.model.alpha_s, self.model.beta_s) < 0 or self.model.alpha_s + self.model.beta_s <= 0:
                raise ValueError("a step time that is not above 0, or falls with the batch")
        elif min(self.model.step_times_s) <= 0 or any(a > b for a, b in pairwise(self.model.step_times_s)):
            raise ValueError("a curve that is not above 0, or falls: see monotone_curve")


class Fleet:
    """Devices for the solver, in granules of `multiple` samples; equal devices are one kind, counted.

    Kinds are sorted by what they are, so nothing depends on the order of the devices. Time is a piecewise linear
    function, t(u) = min(high, low + rise · (u·multiple − left) / run) in its piece: operation by operation what
    `Line` and `Curve` compute. The `min` keeps rounding from making it fall where one piece meets the next. Each
    operation is monotone in u, rounded or not: so t never falls, and "the largest u with k·t(u) ≤ T" is exact.
    """

    def __init__(
        self, loads: Sequence[Load], *, multiple: int = 1, micro_batches: int = 1, required: int | None = None
    ) -> None:
        pieces: dict[tuple[Line | Curve, int], tuple[_Piece, ...]] = {}
        keys = []
        for device, load in enumerate(loads):
            key = (load.model, load.limit // multiple)
            if key not in pieces:
                pieces[key] = _pieces(*key, multiple)
            keys.append((key[1], pieces[key], device == required))
        kinds = {key: kind for kind, key in enumerate(sorted(set(keys)))}
        self.multiple = multiple
        self.micro = np.arange(1.0, micro_batches + 1)
        self.kind_of = np.array([kinds[key] for key in keys], dtype=np.intp)
        self.count = np.bincount(self.kind_of, minlength=len(kinds)).astype(float)
        self.limit = np.array([key[0] for key in kinds], dtype=float)
        self.floor = np.array([float(key[2]) for key in kinds])
        self._set_pieces([key[1] for key in kinds])

    def _set_pieces(self, of_kinds: Sequence[tuple[_Piece, ...]]) -> None:
        """Piece p of kind i is at p·kinds + i; one that is not there begins at no time and at no batch."""
        self._pieces = max((len(pieces) for pieces in of_kinds), default=1)
        table = np.array([[*pieces, *[_ABSENT] * (self._pieces - len(pieces))] for pieces in of_kinds])
        columns = table.reshape(len(of_kinds), self._pieces, 7).transpose(2, 1, 0).reshape(7, -1)
        self._first, self._last, self._left, self._low, self._rise, self._run, self._high = columns
        steep = self._rise > _FLAT * self._run
        self._per_s = np.divide(self._run, self._rise, out=np.zeros_like(self._run), where=steep) / self.multiple
        self._from = np.where(steep, self._left / self.multiple, np.inf)  # a flat piece goes on to its last
        there = np.isfinite(self._first)
        self._begins_s = np.where(there, self._in_piece(_ALL, np.where(there, self._first, 1)), np.inf)

    def _in_piece(self, at: Ints | slice, units: Floats) -> Floats:
        """t(u) by the formula of given pieces."""
        span = units * self.multiple - self._left[at]
        time: Floats = np.minimum(self._high[at], self._low[at] + self._rise[at] * span / self._run[at])
        return time

    def time_s(self, kinds: Ints, units: Floats) -> Floats:
        """Seconds of one micro-batch of so many granules, at least 1, on a device of that kind."""
        at = kinds.copy()
        for piece in range(1, self._pieces):
            at += len(self.limit) * (self._first[piece * len(self.limit) + kinds] <= units)
        return self._in_piece(at, units)

    def micro_units(self, deadlines_s: Floats) -> Floats:
        """The largest u with k·t(u) ≤ T, within the limit, at [T, k−1, kind]; 0 where there is none."""
        ks, kinds = len(self.micro), len(self.limit)
        every = np.arange(ks * kinds)
        found = self._largest(deadlines_s, np.repeat(self.micro, kinds), every % kinds if ks > 1 else _ALL)
        return found.reshape(len(deadlines_s), ks, kinds)

    def _largest(self, deadlines_s: Floats, micro: Floats, kinds: Ints | slice) -> Floats:
        """`micro_units` at [T, row], for rows of a k and a kind each.

        A division says nearly where; whether it is there is asked of t itself, and where not, bisection finds it.
        """
        deadline = deadlines_s[:, None]
        begun = micro * self._begins_s[: len(self.limit)][kinds] <= deadline
        at = kinds
        if self._pieces > 1:
            at = np.broadcast_to(np.arange(len(self.limit))[kinds], begun.shape).copy()
            for begins_s in self._begins_s.reshape(self._pieces, -1)[1:]:
                at += len(self.limit) * (micro * begins_s[kinds] <= deadline)
        last = self._last[at]
        near = np.floor(self._from[at] + (deadline / micro - self._low[at]) * self._per_s[at])
        units: Floats = np.minimum(np.maximum(near, self._first[at]), last)
        late = micro * self._in_piece(at, units) > deadline
        more = (units < last) & (micro * self._in_piece(at, units + 1) <= deadline)
        missed = np.nonzero((late | more) & begun)
        if len(missed[0]):
            pieces = np.broadcast_to(np.arange(len(self._last))[at], begun.shape)[missed]
            units[missed] = self._bisected(pieces, micro[missed[1]], deadlines_s[missed[0]])
        units[~begun] = 0
        return units

    def _bisected(self, at: Ints, micro: Floats, deadline: Floats) -> Floats:
        """As `micro_units`, in pieces whose first granule is in time."""
        low, high = self._first[at], self._last[at]
        while (low < high).any():
            middle = np.ceil((low + high) / 2)
            fits = micro * self._in_piece(at, middle) <= deadline
            low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
        return low

    def units(self, deadlines_s: Floats) -> Floats:
        """The largest batch of each kind by each deadline, at [T, kind]: max over k of k·u; at least its floor."""
        return self.most(self.micro_units(deadlines_s))

    def most(self, micro_units: Floats) -> Floats:
        """From the micro-batches at […, k−1, kind] the granules that a device of each kind does at most."""
        units: Floats = np.maximum((self.micro[:, None] * micro_units).max(axis=-2), self.floor)
        return units

    def totals(self, deadlines_s: Floats) -> tuple[Floats, Floats]:
        """G(T), all devices' granules by each of some rising deadlines, and the same with each kind counted once."""
        if len(self.micro) > 1 and len(deadlines_s) > 2:
            units = self._units_between(deadlines_s)
        else:
            block = max(1, _AT_ONCE // max(1, len(self.limit) * len(self.micro)))
            starts = range(0, len(deadlines_s), block)
            units = np.concatenate([self.units(deadlines_s[start : start + block]) for start in starts])
        return units @ self.count, units.sum(axis=1)

    def _units_between(self, deadlines_s: Floats) -> Floats:
        """`units`; most k make no difference: those that do no more by the last than is done by the first."""
        ends = self.micro_units(deadlines_s[[0, -1]])
        first, last = self.most(ends)
        kinds, k = np.nonzero((self.micro[:, None] * ends[1] > first).T)
        micro = self.micro[k]
        starts = np.nonzero(np.diff(kinds, prepend=-1))[0]
        rows = [first]
        for deadline_s in deadlines_s[1:-1]:
            units = first.copy()
            if len(kinds):
                most = np.maximum.reduceat(micro * self._largest(np.array([deadline_s]), micro, kinds)[0], starts)
                units[kinds[starts]] = np.maximum(units[kinds[starts]], most)
            rows.append(units)
        return np.array([*rows, last])

    def total(self, deadline_s: float) -> float:
        """G(T) of one deadline."""
        return float(self.totals(np.array([deadline_s]))[0][0])

    @property
    def first_s(self) -> float:
        """The first deadline by which the device that is required, or else any, has a granule; ∞ if there is none."""
        begins_s = self._begins_s[: len(self.limit)]
        return float(max(begins_s.min(initial=np.inf), begins_s[self.floor > 0].max(initial=0.0)))

    @property
    def last_s(self) -> float:
        """The deadline by which all of them have all that they may be given."""
        some = np.nonzero(self.limit >= 1)[0]
        return float(self.micro[-1] * self.time_s(some, self.limit[some]).max(initial=0.0))

    def ends(self) -> Floats:
        """The first and last granule of each piece, at [any, kind]: u/t(u) is largest at one of them."""
        ends: Floats = np.where(np.isfinite(self._first), [self._first, self._last], 0.0)
        return ends.reshape(-1, len(self.limit))


def _pieces(model: Line | Curve, limit: int, multiple: int) -> tuple[_Piece, ...]:
    """(first granule, last granule, left, low, rise, run, high), in order; without those that hold no granule.

    Below its first point a curve goes on as its first piece does, but not below 0 at no samples: no time is negative.
    """
    if isinstance(model, Line) or len(model.batches) == 1:
        line = (model.alpha_s, model.beta_s) if isinstance(model, Line) else (model.step_times_s[0], 0.0)
        return ((1.0, float(limit), 0.0, *line, 1.0, np.inf),) if limit else (_ABSENT,)
    knots = list(zip(model.batches, model.step_times_s, strict=True))
    (left, low), (right, high) = knots[:2]
    if low * right < high * left:
        knots = [(0, 0.0), *knots]
    pieces: list[_Piece] = []
    first = 1
    for (left, low), (right, high) in pairwise(knots):
        is_last = right == model.batches[-1]
        last = limit if is_last else min(limit, right // multiple)
        if first <= last:
            top = np.inf if is_last else high
            pieces.append((float(first), float(last), float(left), low, high - low, float(right - left), top))
            first = last + 1
    return tuple(pieces) or (_ABSENT,)
