"""The best deadline for a step: granules in the order of time, added up and valued."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

from gpubalance.planning.fleet import TIE, Fleet, Floats
from gpubalance.planning.problem import TooFineError

# So many granules are sorted at once: that costs about as much as dividing their time further.
_AT_ONCE = 1 << 12
_PARTS = 8
# More time intervals than this, too close in value for any bound to separate, would take too long.
_MOST = 1 << 18
# Blocks of this many numbers stay in the processor's cache.
_IN_CACHE = 1 << 15

# The value of all devices' granules by a deadline in seconds: 0 if the split is not a wanted one.
Value: TypeAlias = Callable[[Floats, Floats], Floats]


def best_deadline(
    fleet: Fleet,
    value: Value,
    *,
    alone: bool = False,
    above: float = 0.0,
    at_once: int = _AT_ONCE,
) -> tuple[float, float]:
    """The deadline T, in seconds, with the highest value of (G(T), T), and that value.

    Of equals it is the shortest; without a value above `above` they are (∞, 0).

    G(T) is the sum of what all devices have done by T, or with `alone` the most that one has done.
    It rises only when a granule is done, so the best T is one of these times. If they are too many
    to list, time is divided: in (a, b] nothing is worth more than G(b) at a, and intervals worth
    less than the best so far are dropped until few granules remain. So the best is never left out.
    Raises TooFineError if too many granules remain.
    """
    begin = np.array([0.0])
    end = np.array([fleet.last_s])
    times = []
    values = []
    best = above
    granules = np.inf
    while granules > max(at_once, _PARTS * begin.size * fleet.count.size):
        if begin.size > _MOST:
            raise TooFineError(f"{granules:,.0f} batch sizes are too many to compare")
        edges = begin[:, None] + (end - begin)[:, None] * np.linspace(0, 1, _PARTS + 1)
        total, each_once = _done(fleet, edges.ravel(), alone=alone)
        times.append(edges.ravel())
        values.append(value(total, edges.ravel()))
        best = max(best, values[-1].max())
        total = total.reshape(edges.shape)
        each_once = each_once.reshape(edges.shape)
        begin = edges[:, :-1]
        end = edges[:, 1:]
        is_left = (np.diff(total) > 0) & (np.nextafter(begin, end) < end)
        is_left &= value(total[:, 1:], begin) >= best * (1 - TIE)
        begin = begin[is_left]
        end = end[is_left]
        granules = np.diff(each_once)[is_left].sum()
    for block in _blocks(fleet, begin.size):
        low = _units(fleet, begin[block], alone=alone)
        high = _units(fleet, end[block], alone=alone)
        done_s, total = _in_order(fleet, low, high, alone=alone)
        times.append(done_s)
        values.append(value(total, done_s))
    all_times = np.concatenate(times)
    all_values = np.concatenate(values)
    best = all_values.max()
    if best <= above:
        return np.inf, 0.0
    return float(all_times[all_values >= best * (1 - TIE)].min()), float(best)


def _done(fleet: Fleet, deadlines_s: Floats, *, alone: bool) -> tuple[Floats, Floats]:
    """G, and the same with each kind counted once."""
    total = np.empty_like(deadlines_s)
    each_once = np.empty_like(deadlines_s)
    for block in _blocks(fleet, deadlines_s.size):
        units = _units(fleet, deadlines_s[block], alone=alone)
        if alone:
            total[block] = units.max(axis=1)
        else:
            total[block] = units @ fleet.count
        each_once[block] = units.sum(axis=1)
    return total, each_once


def _units(fleet: Fleet, deadlines_s: Floats, *, alone: bool) -> Floats:
    """What each kind has done by the deadlines; `alone` counts only those that may be alone."""
    units = fleet.most(deadlines_s)
    if alone:
        units = units * fleet.may_be_alone
    return units


def _blocks(fleet: Fleet, deadlines: int) -> Iterator[slice]:
    """Slices of the deadlines that fit in the processor's cache."""
    size = max(1, _IN_CACHE // fleet.width)
    return (slice(start, start + size) for start in range(0, deadlines, size))


def _in_order(
    fleet: Fleet, low: Floats, high: Floats, *, alone: bool
) -> tuple[Floats, Floats]:
    """When each granule in some intervals is done, and G from then on.

    At an interval's start each kind has done `low` granules, at its end `high`. Of several granules
    done at once, all but the last have too small a G, which does no harm.
    """
    counts = (high - low).astype(np.intp)
    each = counts.ravel()
    interval, kind = np.indices(counts.shape).reshape(2, -1).repeat(each, axis=1)
    before = np.cumsum(each) - each - low.ravel()
    units = np.arange(1.0, len(kind) + 1) - np.repeat(before, each)
    times_s = fleet.time_s(units, kind)
    if alone:
        return times_s, units
    order = np.argsort(times_s)  # intervals are in order too
    done = np.cumsum(fleet.count[kind[order]])
    inside = counts @ fleet.count
    before = low @ fleet.count - (np.cumsum(inside) - inside)
    return times_s[order], done + before[interval[order]]
