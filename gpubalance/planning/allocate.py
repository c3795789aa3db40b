"""Finds the best split, each device's samples and micro-batches, from models of the devices' step
times.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import replace

import numpy as np

from gpubalance.planning.deadline import Value, best_deadline
from gpubalance.planning.fleet import TIE, Fleet, Floats, Ints
from gpubalance.planning.problem import Allocation, Binds, NoSplitError, Problem, TooFineError
from gpubalance.settings.shares import Shares

# Rounding in a sum of times; well below TIE.
_ROUNDING = 1e-13


def allocate(problem: Problem) -> Allocation:
    """The most valuable split; with a global batch, the best of that size. Raises NoSplitError and
    TooFineError.

    Problem: a device computes b samples, a multiple of the granularity, in c(b) seconds (see
    `Fleet`), which never fall as b grows, and updates its weights in u seconds; without samples it
    does neither. Maximise the objective of B = Σb and T = max (c(b) + u) + s. Here s is the sync of
    the devices that have samples, and 0 for one alone, which waits for nobody. B is the global
    batch, or at most the largest one. A required device gets at least one granule.

    (Only the all-reduce is a barrier: a device that has updated begins its next batch. So each
    device's own update adds to its own compute, and T has no separate max u over all devices.)

    Method: by a deadline T a device can have done any number of granules up to a maximum, F(T). So
    with one s for all sets the best split belongs to the deadline at which (min(ΣF(T), largest B),
    T + s) is worth the most, or for one device alone (max F(T), T): see `best_deadline`. A split
    that is charged s but uses one device is no better than that device alone. With several, that
    search runs over all devices and over each measured set: a set takes what is measured for the
    smallest of them around it, so the best of the results is the best of all splits.

    Ties, within 1e-12, are decided in this order: more devices before fewer, so that a device is
    left out only if that is better; the shorter step, which is the smaller global batch; batches as
    even as the deadline allows; the first of equal devices. A device takes the fewest micro-batches
    that keep the deadline, as even as they can be in no more time.
    """
    best = _of_all_sets(problem)
    if not problem.within or problem.global_batch is not None:
        return best
    bar = problem.value(best) * (1 - problem.within)
    low, high = 0, problem.micro_batches
    while high - low > 1:  # the best never falls with K: a split for K is one for K + 1 too
        middle = (low + high) // 2
        fewer = allocated(replace(problem, micro_batches=middle, within=0.0))
        if fewer and problem.value(fewer) >= bar:
            high, best = middle, fewer
        else:
            low = middle
    return best


def _of_all_sets(problem: Problem) -> Allocation:
    """The best split of any set of devices."""
    everything = frozenset(range(len(problem.loads)))
    best = _of_some(problem, everything)
    for some in sorted(problem.sync.measured, key=len, reverse=True):
        found = _of_some_or_none(problem, some)
        if found and (best is None or problem.value(found) > problem.value(best) * (1 + TIE)):
            best = bound_by_sync(problem, found, some)
    if best is None:
        raise NoSplitError("no split has all the devices that must have samples")
    return best


def _of_some(problem: Problem, some: frozenset[int]) -> Allocation | None:
    """The best split over these devices, or a part of them that needs no more sync than they do, if
    there is one.
    """
    sync_s = problem.sync.of(some)
    found = _Solver(only(problem, some), sync_s).best()
    used = frozenset(found.split.used)
    if problem.sync.of(used) <= sync_s:
        return found
    # A part that was measured takes longer than the whole: what is asked for has a device that this
    # part lacks.
    lacking = sorted(some - problem.sync.around(used))
    tried = (_of_some_or_none(requiring(problem, {device}), some) for device in lacking)
    return max(filter(None, tried), key=problem.value, default=None)


def _of_some_or_none(problem: Problem, some: frozenset[int]) -> Allocation | None:
    try:
        return _of_some(problem, some)
    except (NoSplitError, TooFineError):
        return None


def requiring(problem: Problem, devices: Set[int]) -> Problem:
    """The problem in which these devices get samples, too."""
    loads = (
        replace(load, required=load.required or i in devices)
        for i, load in enumerate(problem.loads)
    )
    return replace(problem, loads=tuple(loads))


def only(problem: Problem, devices: Set[int]) -> Problem:
    """The problem in which the other devices can do nothing."""
    loads = (
        load if number in devices else replace(load, limit=0)
        for number, load in enumerate(problem.loads)
    )
    return replace(problem, loads=tuple(loads))


def bound_by_sync(problem: Problem, found: Allocation, some: frozenset[int]) -> Allocation:
    """A split of some devices, in which the others could have samples but for the sync that they
    may cost.
    """
    binds = list(found.binds)
    for number, load in enumerate(problem.loads):
        if number not in some and load.limit:
            binds[number] = "sync"
    return replace(found, binds=tuple(binds))


def gain(problem: Problem, device: int) -> float | None:
    """The fraction by which a device raises the objective: below 0 if it is not worth adding.

    The best split with at least one granule on it, against the best without it; None if there is no
    such split.
    """
    others = {*range(len(problem.loads))} - {device}
    within, without = allocated(requiring(problem, {device})), allocated(only(problem, others))
    return problem.value(within) / problem.value(without) - 1 if within and without else None


def allocated(problem: Problem) -> Allocation | None:
    """The same as `allocate`; None if there is no such split, or batches are too fine for the
    solver.
    """
    try:
        return allocate(problem)
    except (NoSplitError, TooFineError):
        return None


class _Solver:
    """One problem, in granules, as if every set of devices took `sync_s`."""

    def __init__(self, problem: Problem, sync_s: float) -> None:
        self._problem = problem
        self._sync_s = sync_s
        self._multiple = problem.multiple
        asked = [
            batch for batch in (problem.global_batch, problem.max_global_batch) if batch is not None
        ]
        self._fleet = Fleet(
            problem.loads,
            multiple=self._multiple,
            micro_batches=problem.micro_batches,
            # One more, to name the next possible one.
            most=min(asked) // self._multiple + 1 if asked else np.inf,
        )
        self._first_s = self._fleet.first_s
        most = problem.max_global_batch
        possible = float(self._fleet.count @ self._fleet.largest)
        self._most = possible if most is None else min(possible, most // self._multiple)
        self._least = max(1.0, self._fleet.required)
        self._check()
        if problem.global_batch is not None:
            self._least = self._most = problem.global_batch / self._multiple

    def best(self) -> Allocation:
        """The solution; `allocate` states the problem and the method."""
        deadline_s, worth = best_deadline(self._fleet, self._value(self._sync_s))
        above = worth * (1 + TIE)
        alone_s, worth_alone = best_deadline(self._fleet, self._value(0.0), alone=True, above=above)
        return (
            self._allocation(alone_s, alone=True)
            if worth_alone
            else self._allocation(deadline_s, alone=False)
        )

    def _allocation(self, deadline_s: float, *, alone: bool) -> Allocation:
        deadline_s = max(deadline_s, self._first_s)  # a required device counts from 0 s on
        units = self._given(deadline_s, alone=alone)
        deadline_s *= 1 + _ROUNDING
        sizes, times = self._fleet.micro_batches(units, deadline_s)
        used = units > 0
        computes = np.where(used, times - self._fleet.update_s[self._fleet.kind_of], 0.0)
        return Allocation(
            split=Shares(self._samples(units), self._samples(sizes)),
            compute_s=tuple(computes.tolist()),
            step_time_s=float(times.max()) + (self._sync_s if used.sum() > 1 else 0.0),
            binds=tuple(self._binds(units, sizes, deadline_s)),
        )

    def _given(self, deadline_s: float, *, alone: bool) -> Floats:
        """The granules of each device by a deadline, as even as possible.

        But a device that is as fast with more keeps what it can do before the deadline. `alone`
        gives all to the first device of the first kind that can do so many.
        """
        fleet, kinds = self._fleet, self._fleet.kind_of
        before, by = fleet.most(deadline_s * np.array([1 - _ROUNDING, 1 + _ROUNDING]))
        if alone:
            by *= fleet.may_be_alone
            total, units = min(self._most, by.max()), np.zeros(len(kinds))
            units[np.argmax(kinds == np.argmax(by >= total))] = total
            return units
        before, by = before[kinds], by[kinds]
        total = min(self._most, by.sum())
        return _levelled(before if before.sum() <= total else fleet.floor[kinds], by, total, kinds)

    def _samples(self, granules: Floats) -> tuple[int, ...]:
        return tuple((granules * self._multiple).astype(np.int64).tolist())

    def _binds(self, units: Floats, sizes: Floats, deadline_s: float) -> list[Binds]:
        """What keeps each device from one granule more in as many micro-batches.

        "memory": its limit, though the granule would be in time, or the global batch is free.
        "speed": the others would wait for it. "granularity": they would wait for a granule, but not
        for a sample. "global batch": neither, but all samples that were asked for are given.
        "sync": one device alone is faster.
        """
        kinds, k = self._fleet.kind_of, np.ceil(units / np.maximum(sizes, 1)).clip(1)
        with_a_granule = np.maximum(sizes, np.ceil((units + 1) / k))
        granule = self._fleet.pieces_s(units + 1, with_a_granule, kinds) <= deadline_s
        # An update follows only the last of k pieces.
        later_s = deadline_s + (k - 1) * self._fleet.update_s[kinds]
        sample = k * self._fleet.piece_s((units + 1 / self._multiple) / k, kinds) <= later_s
        # At the best deadline the limits alone then stop a device.
        free = self._problem.global_batch is None
        at_most = self._problem.max_global_batch
        all_given = not free or (at_most is not None and units.sum() >= self._most)
        full = units + 1 > k * self._fleet.limit[kinds]
        alone = np.count_nonzero(units) == 1
        binds: list[Binds] = np.select(
            [
                full & (granule | free),
                granule & alone & (units == 0),
                all_given & (granule | (alone & (units > 0))),  # nobody waits for it
                sample & ~full,
            ],
            ["memory", "sync", "global batch", "granularity"],
            "speed",
        ).tolist()
        return binds

    def _value(self, sync_s: float) -> Value:
        """The objective of granules by a deadline; granules above the wanted number don't count."""

        def value(granules: Floats, deadlines_s: Floats) -> Floats:
            given = np.minimum(granules, self._most)
            worth = self._problem.objective(
                given * self._multiple, np.maximum(deadlines_s, self._first_s) + sync_s
            )
            return np.where(given >= self._least, worth, 0.0)

        return value

    def _check(self) -> None:
        """Raises NoSplitError if no split meets the request."""
        problem, multiple, least = self._problem, self._multiple, int(self._least) * self._multiple
        if math.isinf(self._first_s):
            raise NoSplitError(f"no device's batch limit allows a batch of {multiple}")
        if self._most < self._least:
            raise NoSplitError(
                f"a global batch of at most {problem.max_global_batch} is less than the least "
                f"batch, {least}",
                above=least if problem.global_batch is None else None,
            )
        if problem.global_batch is None:
            return
        wanted, rest = divmod(problem.global_batch, multiple)
        if rest or not self._least <= wanted <= self._most:
            below, above = min(wanted, int(self._most)), max(int(self._least), wanted + 1)
            raise NoSplitError(
                f"no split has a global batch of {problem.global_batch}",
                below * multiple if below >= self._least else None,
                above * multiple if above <= self._most else None,
            )


def _levelled(low: Floats, high: Floats, total: float, kinds: Ints) -> Floats:
    """`total` granules, as even as possible: every device is brought to one level between its `low`
    and `high`.

    The rest goes to the first devices.
    """
    level, above = 0, int(high.max()) + 1
    while above - level > 1:
        middle = (level + above) // 2
        level, above = (
            (middle, above) if np.clip(middle, low, high).sum() <= total else (level, middle)
        )
    units: Floats = np.clip(float(level), low, high)
    more = np.nonzero((low <= level) & (level < high))[0]
    first = more[np.lexsort((more, kinds[more]))]
    units[first[: int(total - units.sum())]] += 1
    return units
