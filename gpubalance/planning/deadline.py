"""The best deadline for a step: granules in the order of the times at which they are done, summed, and valued."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from gpubalance.planning.fleet import TIE, Fleet, Floats
from gpubalance.planning.problem import TooFineError

# So many granules are put in order at once: about the price of dividing the time before them further.
_AT_ONCE = 1 << 16
_PARTS = 8
# More than this many, all so nearly as good that no bound tells them apart, would fill the memory.
_MOST = 1 << 25

# What granules of all devices by a deadline in seconds are worth: 0 where that is not what is wanted.
Value: TypeAlias = Callable[[Floats, Floats], Floats]


@dataclass(frozen=True)
class Deadline:
    """A deadline, in seconds, and what the best split that keeps it is worth."""

    time_s: float
    value: float


def best_deadline(
    fleet: Fleet, value: Value, *, alone: bool = False, above: float = 0.0, at_once: int = _AT_ONCE
) -> Deadline:
    """The deadline T of the highest value of (G(T), T), and of equal ones the shortest; (∞, 0) if none is `above` that.

    G(T) is the sum of what all devices have done by T, or with `alone` the most that one has. It rises only when a
    granule is done, so the best T is one of these times. Where they are too many to tabulate them all, time is divided:
    in (a, b] nothing is worth more than G(b) at a, and what is worth less than the best so far is dropped until the
    rest is few. So nothing is left out that could be the best. Raises TooFineError where too many granules remain.
    """

    def total(units: Floats) -> Floats:
        done: Floats = units.max(axis=-1) if alone else units @ fleet.count
        return done

    begin, end, low = np.array([0.0]), np.array([fleet.last_s]), fleet.floor[None]
    high = np.where(fleet.may_be_alone, fleet.largest, 0.0)[None] if alone else fleet.largest[None]
    times = np.append(begin, end)
    values = np.append(value(total(low), begin), value(total(high), end))
    while True:
        best = max(above, values.max())
        kept = (total(high) > total(low)) & (np.nextafter(begin, end) < end)
        kept &= value(total(high), begin) >= best * (1 - TIE)
        begin, end, low, high = begin[kept], end[kept], low[kept], high[kept]
        granules = (high - low).sum()
        if granules <= max(at_once, _PARTS * low.size):
            break
        if low.size > _MOST // _PARTS:
            raise TooFineError(f"{granules:,.0f} batch sizes are too many to compare")
        begin, end, low, high = _divided(fleet, begin, end, low, high)
        times, values = np.append(times, end), np.append(values, value(total(high), end))
    done_s, totals = _in_order(fleet, low, high, total(low), alone=alone)
    times, values = np.append(times, done_s), np.append(values, value(totals, done_s))
    best = values.max()
    if best <= above:
        return Deadline(np.inf, 0.0)
    return Deadline(float(times[values >= best * (1 - TIE)].min()), float(best))


def _divided(fleet: Fleet, begin: Floats, end: Floats, low: Floats, high: Floats) -> tuple[Floats, ...]:
    """Each interval in equal parts, with what each kind has done when they begin and end."""
    parts = np.arange(1, _PARTS) / _PARTS
    between_s = begin[:, None] + (end - begin)[:, None] * parts
    between = fleet.most(between_s, low[:, None], high[:, None])
    times = np.concatenate([begin[:, None], between_s, end[:, None]], axis=1)
    units = np.concatenate([low[:, None], between, high[:, None]], axis=1)
    kinds = low.shape[1]
    return (
        times[:, :-1].ravel(),
        times[:, 1:].ravel(),
        units[:, :-1].reshape(-1, kinds),
        units[:, 1:].reshape(-1, kinds),
    )


def _in_order(fleet: Fleet, low: Floats, high: Floats, before: Floats, *, alone: bool) -> tuple[Floats, Floats]:
    """When each granule of some intervals is done, and G from then on, if it was `before` when the interval began.

    Of several that are done at once all but the last have too small a G, which does no harm.
    """
    counts = (high - low).astype(np.intp)
    interval, kind = (np.repeat(at.ravel(), counts.ravel()) for at in np.indices(counts.shape))
    units = np.arange(1.0, len(kind) + 1) - np.repeat(np.cumsum(counts) - counts.ravel() - low.ravel(), counts.ravel())
    times = fleet.time_s(units, kind)
    if alone:
        return times, units
    order = np.argsort(times)  # intervals are in order too
    done = np.cumsum(fleet.count[kind[order]])
    earlier = np.cumsum(counts @ fleet.count) - counts @ fleet.count
    return times[order], done + (before - earlier)[interval[order]]
