"""How much each device has done by a deadline: many devices' step times, and their inverse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpubalance.planning.model import Line, Piece
from gpubalance.planning.problem import Load

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.intp]

# Rounding makes equal times and values differ by at most this fraction.
TIE = 1e-12

_SIZES = 32  # equal parts of a limit
# A fraction of a granule, larger than the rounding of a division.
_ROUNDED = 1e-6
_ALL = slice(None)


class Fleet:
    """Devices for the solver, in granules of `multiple` samples.

    Equal devices form one kind, with a `count`. Kinds are sorted by their properties, so that the
    order of the devices does not matter. A required device has one granule as its `floor`.

    In micro-batches of m granules, u granules take q·t(m) + t(u − q·m) seconds with q = ⌈u/m⌉ − 1,
    and the update. t is the device's step-time model, which never falls. (The engine takes the
    remainder first.) m may be the limit, a measured batch, or a multiple of a 32nd of the limit,
    rounded up. d(u) is the least time of u granules or more with any m that needs at most
    `micro_batches`. No device does more than `maximum` granules.
    """

    def __init__(
        self,
        loads: Sequence[Load],
        *,
        multiple: int = 1,
        micro_batches: int = 1,
        maximum: float = np.inf,
    ) -> None:
        kinds = [_DeviceKind.of(load, multiple, micro_batches) for load in loads]
        different = sorted(set(kinds))
        numbers = {kind: number for number, kind in enumerate(different)}
        self.kind_of = np.array([numbers[kind] for kind in kinds], dtype=np.intp)
        self.count = np.bincount(self.kind_of).astype(float)
        self.update_s = np.array([kind.update_s for kind in different])
        self.floor = np.array([kind.required for kind in different], dtype=float)
        never = (np.inf, np.inf, 0.0)
        pieces = _table([kind.pieces for kind in different], never)
        self._begins, self._low_s, self._slope_s = pieces
        self._micro_batches = micro_batches
        self._sizes = _table([kind.sizes for kind in different], 0.0)
        self.limit: Floats = self._sizes[0]
        self.largest: Floats = np.minimum(self.limit * micro_batches, maximum)
        is_size = self._sizes.T > 0
        is_size[:, 0] = True  # a size of 0 for a device that can do nothing
        # Of each size, sorted by kind: the kind, the size, and its seconds without the update
        self._kind, column = np.nonzero(is_size)
        self._size = self._sizes[column, self._kind]
        self._size_s = self.piece_s(self._size, self._kind) - self.update_s[self._kind]
        self.width = len(self._kind)

    def piece_s(self, units: Floats, kinds: Ints | slice = _ALL) -> Floats:
        """Seconds of granules as the last micro-batch or the only one: t(u) and the update."""
        return self._in_piece_s(units, self._piece(self._begins, units, kinds))

    def _piece(
        self,
        begins: Floats,
        reached: Floats,
        kinds: Ints | slice,
        moved: Floats | float = 0.0,
    ) -> Ints | slice:
        """The last piece that begins before what each kind has reached, by bisection.

        It is an index into the flat table. `begins` is in granules or in seconds, as is `reached`.
        Every piece begins `moved` later than the table says.
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
        self,
        deadlines_s: Floats,
        begun_s: Floats | float = 0.0,
        kinds: Ints | slice = _ALL,
    ) -> Floats:
        """The most granules, up to the limit, that are done by a deadline if begun at `begun_s`.

        They are the last micro-batch. A division gives almost the number, if anything one too many:
        so t itself decides whether the last one is in time.
        """
        after_s = np.nextafter(deadlines_s, np.inf)
        at = self._piece(self._low_s, after_s, kinds, begun_s)
        with np.errstate(all="ignore"):  # a flat piece: all of it
            spare_s = after_s - (begun_s + self._low_s.ravel()[at])
            units = spare_s / self._slope_s.ravel()[at]
        units += self._begins.ravel()[at] + _ROUNDED
        units = np.floor(np.minimum(np.fmax(units, 0.0), self.limit[kinds]))
        is_late = begun_s + self._in_piece_s(units, at) > deadlines_s
        done: Floats = units - (is_late & (units > 0))
        return done

    def time_s(self, units: Floats, kinds: Ints) -> Floats:
        """d(u) for so many granules of each kind, up to the kind's `largest`."""
        if self._micro_batches == 1:
            return self.piece_s(units, kinds)
        minimum: Floats = np.full(units.shape, np.inf)
        for sizes in self._sizes:
            able = np.nonzero(units <= self._micro_batches * sizes[kinds])[0]
            times_s = self.pieces_s(units[able], sizes[kinds[able]], kinds[able])
            minimum[able] = np.minimum(minimum[able], times_s)
        return minimum

    def pieces_s(self, units: Floats, size: Floats, kinds: Ints) -> Floats:
        """Seconds of u granules in micro-batches of that size, with the update."""
        full = np.ceil(units / size) - 1
        full_s = self.piece_s(size, kinds) - self.update_s[kinds]
        time_s: Floats = full * full_s + self.piece_s(units - full * size, kinds)
        return time_s

    def micro_batches(self, units: Floats, deadline_s: float) -> tuple[Floats, Floats]:
        """The micro-batch of each device for so many granules, and their seconds with the update.

        These are the fewest micro-batches that keep the deadline, as even as they can be in no more
        time.
        """
        kinds = self.kind_of
        chosen = np.zeros(len(units))
        chosen_s = np.zeros(len(units))
        for sizes in [units, *self._sizes[:, kinds]]:
            size = np.minimum(sizes, self.limit[kinds]).clip(1)
            time_s = self.pieces_s(units, size, kinds)
            count = np.ceil(units / size).clip(1)
            even = np.maximum(1, np.ceil(units / count))
            even_s = self.pieces_s(units, even, kinds)
            is_open = (chosen == 0) & (units > 0)
            is_able = (units <= self._micro_batches * size) & (time_s <= deadline_s)
            as_soon = even_s <= time_s * (1 + TIE)
            chosen = np.where(is_open & is_able, np.where(as_soon, even, size), chosen)
            chosen_s = np.where(
                is_open & is_able, np.where(as_soon, even_s, time_s), chosen_s
            )
        return chosen, chosen_s

    def maximum(self, deadlines_s: Floats) -> Floats:
        """F(D), the most granules that a device has done by a deadline D: [deadlines, kinds].

        These are full micro-batches and a remainder.
        """
        deadlines_s = deadlines_s[:, None]
        if self._micro_batches == 1:
            units = self._units_in(deadlines_s)
        else:
            # Rounding may leave out one full micro-batch: the last one, which the update follows,
            # may be as large.
            left_s = (deadlines_s - self.update_s[self._kind]) * (1 - _ROUNDED)
            full_size_s = np.where(self._size > 0, self._size_s, np.inf)
            full = np.floor(left_s / full_size_s).clip(0)
            last = self._units_in(deadlines_s, full * self._size_s, self._kind)
            each = full * self._size + np.minimum(last, self._size)
            each = np.minimum(each, self._micro_batches * self._size)
            first_size = np.searchsorted(self._kind, np.arange(len(self.count)))
            units = np.maximum.reduceat(each, first_size, axis=1)
        done: Floats = np.clip(units, self.floor, self.largest)
        return done

    @property
    def required(self) -> float:
        """How many devices must get samples."""
        return float(self.count @ self.floor)

    @property
    def may_be_alone(self) -> NDArray[np.bool_]:
        """The kinds of which one device may do the step: able to, and the only one required."""
        able: NDArray[np.bool_] = (self.limit >= 1) & (self.floor == self.required)
        return able

    @property
    def first_s(self) -> float:
        """Seconds until the first granule, or all required devices' first, are done; ∞ if never."""
        a_granule_s = self.piece_s(np.ones(len(self.count)))
        first_s = np.where(self.limit >= 1, a_granule_s, np.inf)
        if self.required:
            return float(first_s[self.floor > 0].max())
        return float(first_s.min())

    @property
    def last_s(self) -> float:
        """Seconds until all devices have done the most that they may be given."""
        able = np.nonzero(self.limit >= 1)[0]
        return float(self.time_s(self.largest[able], able).max(initial=0.0))


class _DeviceKind(NamedTuple):
    """What equal devices have in common, in granules.

    `sizes` are the micro-batches that such a device may be given, the largest first. `pieces` are
    its straight pieces, with the update in their seconds: so a deadline is compared with one sum,
    and no rounding of a difference decides.
    """

    sizes: tuple[float, ...]
    pieces: tuple[Piece, ...]
    update_s: float
    required: bool

    @classmethod
    def of(cls, load: Load, multiple: int, micro_batches: int) -> _DeviceKind:
        pieces = []
        for begin, low_s, slope_s in load.model.pieces:
            pieces.append((begin / multiple, low_s + load.update_s, slope_s * multiple))
        sizes = _sizes(load, multiple, micro_batches)
        return cls(sizes, tuple(pieces), load.update_s, load.required)


def _sizes(load: Load, multiple: int, micro_batches: int) -> tuple[float, ...]:
    limit = load.limit // multiple
    if isinstance(load.model, Line) or micro_batches == 1:
        return (limit,)  # on a line the limit is best
    sizes = {limit}
    sizes |= {math.ceil(limit * part / _SIZES) for part in range(1, _SIZES)}
    sizes |= {min(limit, batch // multiple) for batch in load.model.batches}
    return tuple(sorted(sizes, reverse=True))


def _table(rows: Sequence[Sequence[float | Piece]], fill: float | Piece) -> Floats:
    """Rows of different lengths as a transposed array, padded to a power of two with `fill`."""
    longest = max(map(len, rows))
    columns = 1 << (longest - 1).bit_length()
    padded = [[*row] + [fill] * (columns - len(row)) for row in rows]
    return np.ascontiguousarray(np.array(padded, dtype=float).T)
