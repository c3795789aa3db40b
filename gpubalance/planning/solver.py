"""The best split by deadlines, for one sync curve: how `allocate` finds it for a set of devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from typing import TypeAlias

import numpy as np

from gpubalance.planning.fleet import TIE, Fleet, Floats, Ints
from gpubalance.planning.problem import (
    Allocation,
    Binds,
    NoSplitError,
    Problem,
    TooFineError,
)
from gpubalance.planning.sync import SyncCurve
from gpubalance.settings.batch_split import BatchSplit

_NO_SYNC = SyncCurve(((0.0, 0.0),))
# Rounding in a sum of times; well below TIE.
_ROUNDING = 1e-13
# So many granules are sorted at once: that costs about as much as dividing their time further.
_AT_ONCE = 1 << 12
_PARTS = 8  # into which a time interval is divided
# More time intervals than this, too close in value for any bound to separate, would take too long.
_MAX_INTERVALS = 1 << 18
# All sets of so many devices are tried: 2⁶ at most.
_MAX_PAST_SLOWER = 6
# Blocks of this many numbers stay in the processor's cache.
_IN_CACHE = 1 << 15


class Solver:
    """One problem, in granules of `multiple` samples, as if every set of devices had that sync.

    Raises NoSplitError if no split meets the request.
    """

    def __init__(self, problem: Problem, sync: SyncCurve) -> None:
        self._problem = problem = _within_reach(problem)
        self._sync = sync
        self._multiple = problem.multiple
        maximum = math.inf
        for batch in (problem.global_batch, problem.max_global_batch):
            if batch is not None:
                # One more, so that an error can name the next possible global batch.
                maximum = min(maximum, batch // self._multiple + 1)
        self._fleet = Fleet(
            problem.loads,
            multiple=self._multiple,
            micro_batches=problem.micro_batches,
            maximum=maximum,
        )
        self._first_s = self._fleet.first_s
        self._minimum = max(1.0, self._fleet.required)
        self._maximum = float(self._fleet.count @ self._fleet.largest)
        if problem.max_global_batch is not None:
            self._maximum = min(
                self._maximum, problem.max_global_batch // self._multiple
            )
        self._check()
        if problem.global_batch is not None:
            self._minimum = self._maximum = problem.global_batch / self._multiple

    def best(self) -> Allocation:
        """The solution; `allocate` states the problem and the method."""
        deadline_s, worth = best_deadline(self._fleet, self._value(self._sync))
        above = worth * (1 + TIE)
        alone_s, worth_alone = best_deadline(
            self._fleet, self._value(_NO_SYNC), alone=True, above=above
        )
        if worth_alone:
            return self._allocation(alone_s, alone=True)
        return self._allocation(deadline_s, alone=False)

    def _allocation(self, deadline_s: float, *, alone: bool) -> Allocation:
        # `Fleet.maximum` counts a required device's granule from 0 s on.
        deadline_s = max(deadline_s, self._first_s)
        units = self._units(deadline_s, alone=alone)
        deadline_s *= 1 + _ROUNDING
        sizes, times_s = self._fleet.micro_batches(units, deadline_s)
        used = units > 0
        computes_s = np.where(
            used, times_s - self._fleet.update_s[self._fleet.kind_of], 0.0
        )
        step_time_s = float(times_s.max())
        if used.sum() > 1:
            step_time_s += float(self._sync.at(step_time_s))
        return Allocation(
            split=BatchSplit(self._samples(units), self._samples(sizes)),
            compute_s=tuple(computes_s.tolist()),
            step_time_s=step_time_s,
            binds=tuple(self._binds(units, sizes, deadline_s)),
        )

    def _units(self, deadline_s: float, *, alone: bool) -> Floats:
        """The granules of each device by a deadline, as even as possible.

        But each device keeps what it can do before the deadline, unless all together can do too
        many. And none gets a batch that was measured to take longer than a larger one, if others
        can have less. `alone` gives all to the first device of the first kind that can do so many.
        """
        kinds = self._fleet.kind_of
        before, by = self._fleet.maximum(
            deadline_s * np.array([1 - _ROUNDING, 1 + _ROUNDING])
        )
        if alone:
            by *= self._fleet.may_be_alone
            total = min(self._maximum, by.max())
            able = np.argmax(by >= total)
            units = np.zeros(len(kinds))
            units[np.argmax(kinds == able)] = total
            return units
        low = before[kinds]
        high = by[kinds]
        total = min(self._maximum, high.sum())
        if low.sum() > total:
            low = self._fleet.floor[kinds]
        units = _levelled(low, high, total, kinds)
        past = self._past_slower(units, high)
        if past is None:
            return units
        if past.sum() <= total:
            return _levelled(past, high, total, kinds)
        return self._with_some_past(units, past, high, total)

    def _with_some_past(
        self, units: Floats, past: Floats, high: Floats, total: float
    ) -> Floats:
        """The fastest of `units` and of those with some devices `past` a slower batch.

        Of 80 samples over two equal devices, 57/23 where 57 take less time than 40. All sets of the
        first six such devices are tried.
        """
        kinds = self._fleet.kind_of
        floor = self._fleet.floor[kinds]
        slower = np.nonzero(past > floor)[0][:_MAX_PAST_SLOWER]
        candidates = [units]
        for count in range(1, len(slower) + 1):
            for devices in map(list, combinations(slower, count)):
                minimum = floor.copy()
                minimum[devices] = past[devices]
                if minimum.sum() <= total:
                    candidates.append(_levelled(minimum, high, total, kinds))
        return min(candidates, key=self._measured_busy_s)

    def _measured_busy_s(self, units: Floats) -> float:
        """Seconds of the slowest device's computing and update, as its own batch was measured."""
        busy_s = [0.0]
        for load, batch in zip(self._problem.loads, self._samples(units), strict=True):
            if batch:
                own_s = load.compute_s(batch, min(batch, load.limit))
                busy_s.append(own_s + load.update_s)
        return max(busy_s)

    def _past_slower(self, units: Floats, high: Floats) -> Floats | None:
        """The fewest granules with which no device is slower than with more.

        Of a device with a slower batch they are the most that it does in no more time, else its
        floor. None if no device has a slower batch.
        """
        kinds = self._fleet.kind_of
        minimum = self._fleet.floor[kinds]
        has_slower = False
        for device, load in enumerate(self._problem.loads):
            batch = int(units[device]) * self._multiple
            if not batch or not load.model.falls:
                continue
            min_s = load.model.step_time_s(batch)
            if load.model.measured_s(batch) > min_s:
                has_slower = True
                own_s = min_s + load.update_s
                in_own_s = self._fleet.maximum(np.array([own_s * (1 + _ROUNDING)]))
                minimum[device] = min(in_own_s[0, kinds[device]], high[device])
        return minimum if has_slower else None

    def _samples(self, granules: Floats) -> tuple[int, ...]:
        return tuple((granules * self._multiple).astype(np.int64).tolist())

    def _binds(self, units: Floats, sizes: Floats, deadline_s: float) -> list[Binds]:
        """What keeps each device from one granule more in as many micro-batches.

        "memory": its limit. "speed": the others would wait for it. "granularity": they would wait
        for a granule, but not for a sample. "global batch": neither, but all samples that were
        asked for are given. "sync": one device alone is faster.
        """
        kinds = self._fleet.kind_of
        k = np.ceil(units / np.maximum(sizes, 1)).clip(1)
        larger = np.maximum(sizes, np.ceil((units + 1) / k))
        granule_in_time = self._fleet.pieces_s(units + 1, larger, kinds) <= deadline_s
        # An update follows only the last of k pieces.
        later_s = deadline_s + (k - 1) * self._fleet.update_s[kinds]
        sample_s = k * self._fleet.piece_s((units + 1 / self._multiple) / k, kinds)
        all_given = self._problem.global_batch is not None
        if self._problem.max_global_batch is not None:
            all_given |= bool(units.sum() >= self._maximum)
        is_full = units + 1 > k * self._fleet.limit[kinds]
        is_alone = np.count_nonzero(units) == 1
        nobody_waits = granule_in_time | (is_alone & (units > 0))
        binds: list[Binds] = np.select(
            [
                is_full,
                granule_in_time & is_alone & (units == 0),
                all_given & nobody_waits,
                sample_s <= later_s,
            ],
            ["memory", "sync", "global batch", "granularity"],
            "speed",
        ).tolist()
        return binds

    def _value(self, sync: SyncCurve) -> Value:
        """The objective of granules by a deadline: 0 for too few; too many count as the most."""

        def value(granules: Floats, deadlines_s: Floats) -> Floats:
            counted = np.minimum(granules, self._maximum)
            busy_s = np.maximum(deadlines_s, self._first_s)
            step_times_s = busy_s + sync.at(busy_s)
            worth = self._problem.objective(counted * self._multiple, step_times_s)
            return np.where(counted >= self._minimum, worth, 0.0)

        return value

    def _check(self) -> None:
        """Raises NoSplitError if no split meets the request."""
        problem = self._problem
        multiple = self._multiple
        minimum = int(self._minimum) * multiple
        if math.isinf(self._first_s):
            raise NoSplitError(f"no device's batch limit allows a batch of {multiple}")
        if self._maximum < self._minimum:
            error = NoSplitError(
                f"a global batch of at most {problem.max_global_batch} is below the "
                f"smallest possible one, {minimum}"
            )
            if problem.global_batch is None:
                error.above = minimum
            raise error
        if problem.global_batch is None:
            return
        wanted, rest = divmod(problem.global_batch, multiple)
        if rest or not self._minimum <= wanted <= self._maximum:
            error = NoSplitError(
                f"no split has a global batch of {problem.global_batch}"
            )
            below = min(wanted, int(self._maximum))
            if below >= self._minimum:
                error.below = below * multiple
            above = max(int(self._minimum), wanted + 1)
            if above <= self._maximum:
                error.above = above * multiple
            raise error


def _within_reach(problem: Problem) -> Problem:
    """The problem in which no batch counts as faster that a device can't have."""
    loads = []
    for load in problem.loads:
        sizes = (load.limit, problem.global_batch, problem.max_global_batch)
        most = min(size for size in sizes if size is not None)
        loads.append(replace(load, model=load.model.up_to(most)))
    return replace(problem, loads=tuple(loads))


def _levelled(low: Floats, high: Floats, total: float, kinds: Ints) -> Floats:
    """`total` granules, as even as possible: all devices at one level within `low` and `high`.

    The rest goes to the first devices.
    """
    level = 0
    above = int(high.max()) + 1
    while above - level > 1:
        middle = (level + above) // 2
        if np.clip(middle, low, high).sum() <= total:
            level = middle
        else:
            above = middle
    units: Floats = np.clip(float(level), low, high)
    more = np.nonzero((low <= level) & (level < high))[0]
    first = more[np.lexsort((more, kinds[more]))]
    units[first[: int(total - units.sum())]] += 1
    return units


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
    """The deadline D, in seconds, with the highest value of (G(D), D), and that value.

    Of equal values the shortest deadline wins; without a value above `above` it is (∞, 0).

    G(D) is the sum of what all devices have done by D, or with `alone` the most that one has done.
    It rises only when a granule is done, so the best D is one of these times. If they are too many
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
        if begin.size > _MAX_INTERVALS:
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
    """G at these deadlines, and the sum of what one device of each kind has done."""
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
    units = fleet.maximum(deadlines_s)
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
    """The seconds at which each granule in some intervals is done, and G from then on.

    At an interval's start each kind has done `low` granules, at its end `high`. Of several granules
    done at once, all but the last have too small a G, which does no harm.
    """
    counts = (high - low).astype(np.intp)
    flat_counts = counts.ravel()
    interval, kind = np.indices(counts.shape).reshape(2, -1).repeat(flat_counts, axis=1)
    offset = np.cumsum(flat_counts) - flat_counts - low.ravel()
    units = np.arange(1.0, len(kind) + 1) - np.repeat(offset, flat_counts)
    times_s = fleet.time_s(units, kind)
    if alone:
        return times_s, units
    order = np.argsort(times_s)  # intervals are in order too
    done = np.cumsum(fleet.count[kind[order]])
    inside = counts @ fleet.count
    done_before = low @ fleet.count - (np.cumsum(inside) - inside)
    return times_s[order], done + done_before[interval[order]]
