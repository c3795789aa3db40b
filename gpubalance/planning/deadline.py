"""The deadlines that make a split the best: by branch and bound for throughput, by bisection for a global batch."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np

from gpubalance.planning.fleet import Fleet, Floats, Ints

# What rounding can make of equal throughputs: within it the shortest step is taken.
TIE = 1e-12

# So many (kind, k, u) are put in order at once rather than divided further: about the price of some deadlines.
_AT_ONCE = 1 << 15
_FIRST_PARTS = 64
_PARTS = 4


def fastest(fleet: Fleet, sync_s: float, first_s: float, last_s: float, *, at_once: int = _AT_ONCE) -> float:
    """The deadline T in [first, last] with the highest G(T)/(T + s); of equal ones the shortest.

    G(T), what all devices do by T, is a staircase that rises, at times c = k·t(u) only, so the best T is `first` or
    one of those. Branch and bound: of an interval (a, b] with G(a) < G(b), no T in it is better than G(b)/(a + s).
    Intervals are taken by that bound, the highest first. One with few enough c in it has them all computed and put in
    order; a larger one is divided; once the highest bound is below the best that was found, all the rest is too.
    Ends when each interval is in order, below the best, or holds no float but b, which was looked at.

    Equal means within 1e-12: what is that near to the final best was never below it, so the shortest is among what
    was kept. How near the bound comes to the best does not matter for what is found, only for how long it takes: at
    worst that of all granules of all kinds put in order, some 0.3 µs each, where limits are so large (10⁹ granules)
    that one more makes no difference between deadlines.
    """
    search = _Search(fleet, sync_s)
    search.divide(first_s, last_s, _FIRST_PARTS)
    while search.waiting and -search.waiting[0][0] >= search.best * (1 - TIE):
        _, low, high, steps = heapq.heappop(search.waiting)
        if steps <= max(at_once, 4 * len(fleet.limit) * len(fleet.micro)):
            search.look(low, high)
        else:
            search.divide(low, high, _PARTS)
    return min(deadline for deadline, rate in search.found if rate >= search.best * (1 - TIE))


class _Search:
    """The best so far, what may be the answer, and the intervals that may hold a better one."""

    def __init__(self, fleet: Fleet, sync_s: float) -> None:
        self._fleet = fleet
        self._sync_s = sync_s
        self.best = 0.0
        self.found: list[tuple[float, float]] = []
        self.waiting: list[tuple[float, float, float, float]] = []  # (−bound, a, b, granules in it)

    def divide(self, low: float, high: float, parts: int) -> None:
        """Looks at deadlines from `low` to `high`, and leaves what is between them waiting."""
        between = low + (high - low) * np.arange(1, parts) / parts  # at least one, unless they are neighbours
        deadlines = np.unique(np.clip([low, *between, high], low, high))
        totals, steps = self._fleet.totals(deadlines)
        self._note(deadlines, totals)
        bounds = totals[1:] / (deadlines[:-1] + self._sync_s)
        for part in np.nonzero((np.diff(totals) > 0) & (bounds >= self.best * (1 - TIE)))[0]:
            a, b = deadlines[part : part + 2]
            if np.nextafter(a, b) < b:
                heapq.heappush(self.waiting, (-float(bounds[part]), float(a), float(b), steps[part + 1] - steps[part]))

    def look(self, low: float, high: float) -> None:
        """Looks at every c in (low, high]."""
        times, totals = _totals(self._fleet, low, high)
        self._note(times, totals)

    def _note(self, deadlines: Floats, totals: Floats) -> None:
        """Keeps what ties with the best, and is faster than all that is kept of shorter ones.

        Where several c are equal, all but the last have too small a total: that does no harm.
        """
        rates = totals / (deadlines + self._sync_s)
        self.best = max(self.best, float(rates.max(initial=0.0)))
        bar = self.best * (1 - TIE)
        for i in np.nonzero(rates >= bar)[0]:
            if rates[i] >= bar:
                self.found.append((float(deadlines[i]), float(rates[i])))
                bar = rates[i]


def _totals(fleet: Fleet, low: float, high: float) -> tuple[Floats, Floats]:
    """The times c in (low, high] at which a kind does more than ever before, in order, and G from there on."""
    before, after = fleet.micro_units(np.array([low, high]))
    had = fleet.most(before)
    start = np.maximum(before, np.floor(had / fleet.micro[:, None]))  # what is no more than that gains nothing
    counts = np.maximum(after - start, 0).astype(np.intp).T.ravel()  # by kind, then k
    row = np.repeat(np.arange(len(counts)), counts)
    kind, k = np.divmod(row, len(fleet.micro))
    units = start.T.ravel()[row] + 1 + np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    times: Floats = fleet.micro[k] * fleet.time_s(kind, units)
    order = np.argsort(times)
    kind, times, done = kind[order], times[order], (fleet.micro[k] * units)[order]
    more = _rises(had, kind, done) if len(fleet.micro) > 1 else np.ones(len(kind))
    return times, had @ fleet.count + np.cumsum(more * fleet.count[kind])


def _rises(had: Floats, kind: Ints, done: Floats) -> Floats:
    """By how much each kind's most rises at each of its times, in order, of all numbers of micro-batches together."""
    by_kind = np.argsort(kind.astype(np.min_scalar_type(len(had))), kind="stable")
    kind, done = kind[by_kind], done[by_kind]
    apart = done.max(initial=0.0)  # between kinds, so that one running maximum serves all of them
    most = np.maximum.accumulate(done + apart * kind) - apart * kind
    before = np.concatenate([[0.0], most[:-1]])
    is_first = np.concatenate([[True], kind[1:] != kind[:-1]])
    rises = np.empty(len(kind))
    rises[by_kind] = most - np.where(is_first, had[kind], before)
    return rises


def earliest(enough: Callable[[float], bool], first_s: float, last_s: float) -> float | None:
    """The smallest float T in [first, last] for which `enough(T)`, if that stays true once it is; None where none is.

    Bisection until the two ends are neighbours as floats: some sixty tries.
    """
    if enough(first_s):
        return first_s
    if not enough(last_s):
        return None
    low, high = first_s, last_s
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
