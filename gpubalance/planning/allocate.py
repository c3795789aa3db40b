"""The best split: how many samples each device gets, and in how many micro-batches, from models of its step time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from gpubalance.planning.deadline import TIE, earliest, fastest
from gpubalance.planning.fleet import Fleet, Floats, Ints
from gpubalance.planning.gaps import Reach
from gpubalance.planning.problem import AUTO_MOST, AUTO_WITHIN, Allocation, Binds, NoSplitError, Problem
from gpubalance.settings.shares import Shares


def allocate(problem: Problem, *, required: int | None = None) -> Allocation:
    """The split with the highest throughput; with a global batch, of that batch. Raises NoSplitError.

    Problem: device i does bᵢ = k·m samples in cᵢ = min k·tᵢ(m), over k ≤ K and m ≤ limitᵢ, m a multiple of the
    granularity, with tᵢ from its model, never falling. Maximise Σbᵢ / (maxᵢ cᵢ(bᵢ) + s) over all b; s is sync if two
    devices or more have samples, and 0 for one alone, which has nobody to wait for. With a global batch Σbᵢ is that,
    so it is the step time that is minimised; with a largest global batch Σbᵢ is at most that. The device `required`
    gets at least one granule.

    Method: one device alone is tried for each device (`_alone`). All others pay s, and so may those be charged it that
    turn out to use one device, as alone it is no worse. Then for a deadline T the most is Fᵢ(T) = max {b : cᵢ(b) ≤ T}
    for each device, and the best split is that of the T with the highest ΣFᵢ(T)/(T + s): for the best split's own
    T = max cᵢ has ΣFᵢ(T) ≥ Σbᵢ, and the split F(T) takes T at most. `deadline.fastest` finds it exactly. For a global
    batch it is the first T by which that batch is possible: without micro-batches once ΣFᵢ(T) is as much, as a device
    may do any multiple less; with them see `gaps.Reach`. What is possible stays so as T grows, so bisection finds it.
    A largest global batch C cuts the T off at which ΣFᵢ exceeds it. From there on splits have totals C, C − 1, … at
    the first T by which each is possible: until one is possible as soon as any, or can't be better than the best.

    Times are compared as computed, by one function, so nothing is decided by rounding but ties. Within 1e-12 the
    order is: devices together before one alone, so that a device is left out only where that is faster; the shorter
    step, which is the smaller global batch; batches as even as they can be; the first devices of equal ones.
    """
    if problem.micro_batches != "auto":
        return _Solver(problem, required).best()
    bar = allocate(replace(problem, micro_batches=AUTO_MOST), required=required).throughput * (1 - AUTO_WITHIN)
    low, high = 0, AUTO_MOST
    while high - low > 1:  # throughput never falls with K: what K allows, K + 1 does
        middle = (low + high) // 2
        low, high = (low, middle) if _rate(problem, middle, required) >= bar else (middle, high)
    return allocate(replace(problem, micro_batches=high), required=required)


def _rate(problem: Problem, micro_batches: int, required: int | None) -> float:
    try:
        return allocate(replace(problem, micro_batches=micro_batches), required=required).throughput
    except NoSplitError:
        return 0.0


@dataclass(frozen=True)
class Worth:
    """The best splits in which a device has samples and in which it has none; None where there is none."""

    within: Allocation | None
    without: Allocation | None

    @property
    def gain(self) -> float | None:
        """By what part throughput is higher with the device: below 0 where it is not worth adding."""
        if self.within is None or self.without is None:
            return None
        return self.within.throughput / self.without.throughput - 1


def worth(problem: Problem, device: int) -> Worth:
    """What a device brings: the best split with at least one granule on it, and the best without it."""
    loads = list(problem.loads)
    loads[device] = replace(loads[device], limit=0)
    without = replace(problem, loads=tuple(loads))
    return Worth(_or_none(problem, device), _or_none(without, None))


def _or_none(problem: Problem, required: int | None) -> Allocation | None:
    try:
        return allocate(problem, required=required)
    except NoSplitError:
        return None


@dataclass(frozen=True)
class _Split:
    """Granules of each device, and the deadline that each of them keeps."""

    units: Floats
    deadline_s: float
    sync_s: float

    @property
    def rate(self) -> float:
        return float(self.units.sum()) / (self.deadline_s + self.sync_s)


class _Solver:
    """One problem, in granules."""

    def __init__(self, problem: Problem, required: int | None) -> None:
        self._problem = problem
        self._multiple = problem.multiple
        self._fleet = Fleet(
            problem.loads, multiple=self._multiple, micro_batches=problem.most_micro_batches, required=required
        )
        self._last_s = max(self._fleet.last_s, self._fleet.first_s)

    def best(self) -> Allocation:
        """See `allocate`."""
        self._check()
        wanted = self._problem.global_batch
        if wanted is None:
            splits = [*self._together(), *self._alone()]
        else:
            splits = [*self._of(wanted // self._multiple), *self._alone_of(wanted // self._multiple)]
        best = max(split.rate for split in splits)
        return self._allocation(next(split for split in splits if split.rate >= best * (1 - TIE)))

    def _check(self) -> None:
        """Raises NoSplitError unless there is a split as wanted."""
        problem, most = self._problem, self._most()
        if math.isinf(self._fleet.first_s):
            raise NoSplitError(f"no device's batch limit allows a batch of {self._multiple}")
        if most < 1:
            raise NoSplitError(
                f"a global batch of at most {problem.max_global_batch} is less than {self._multiple}",
                above=self._multiple if problem.global_batch is None else None,
            )
        if problem.global_batch is None:
            return
        reach = Reach(self._fleet, self._last_s)
        wanted, rest = divmod(problem.global_batch, self._multiple)
        if rest or not 1 <= wanted <= most or not reach.has(wanted):
            below = next((b for b in range(int(min(wanted, most, reach.total)), 0, -1) if reach.has(b)), None)
            above = next((b for b in range(max(1, wanted + 1), int(min(most, reach.total)) + 1) if reach.has(b)), None)
            raise NoSplitError(
                f"no split has a global batch of {problem.global_batch}",
                *(None if b is None else b * self._multiple for b in (below, above)),
            )

    def _most(self) -> float:
        """The largest global batch that is allowed."""
        most = self._problem.max_global_batch
        return math.inf if most is None else most // self._multiple

    def _together(self) -> Iterator[_Split]:
        """The best split with sync, or more of which one is it."""
        fleet, most, sync_s = self._fleet, self._most(), self._problem.sync_s
        over_s = earliest(lambda deadline_s: fleet.total(deadline_s) > most, 0.0, self._last_s)
        up_to = self._last_s if over_s is None else math.nextafter(over_s, 0)
        best = 0.0
        if up_to >= fleet.first_s:
            split = self._by(fastest(fleet, sync_s, fleet.first_s, up_to))
            best = split.rate
            yield split
        if over_s is not None:
            soonest_s = max(over_s, fleet.first_s)
            total = int(most)
            while total >= 1 and total / (soonest_s + sync_s) >= best * (1 - TIE):
                for split in self._of(total):
                    best = max(best, split.rate)
                    yield split
                    if split.deadline_s <= soonest_s:
                        return
                total -= 1

    def _by(self, deadline_s: float) -> _Split:
        """The most by a deadline."""
        units = self._fleet.units(np.array([deadline_s]))[0][self._fleet.kind_of]
        return _Split(units, deadline_s, self._problem.sync_s)

    def _of(self, total: int) -> Iterator[_Split]:
        """The split of so many granules with the shortest step; none where none is possible."""
        fleet = self._fleet
        deadline_s = earliest(lambda at_s: fleet.total(at_s) >= total, 0.0, self._last_s)
        if deadline_s is not None and len(fleet.micro) > 1:
            deadline_s = earliest(lambda at_s: Reach(fleet, at_s).has(total), deadline_s, self._last_s)
        if deadline_s is None:
            return
        units = _spread(fleet, deadline_s, total)
        if units is None:
            units = Reach(fleet, deadline_s).split(total)
        yield _Split(units, max(deadline_s, self._required_s()), self._problem.sync_s)

    def _required_s(self) -> float:
        """Before this the required device has no granule: the others need not wait for it to give them theirs."""
        return self._fleet.first_s if self._fleet.floor.any() else 0.0

    def _candidates(self) -> Ints:
        """The kinds that may be alone: all, or the required one."""
        alone = self._fleet.limit >= 1
        return np.nonzero(alone & (self._fleet.floor > 0) if self._fleet.floor.any() else alone)[0]

    def _alone(self) -> Iterator[_Split]:
        """The best of one device: u/t(u) rises or falls all along a piece, and k·u in k·t(u) is no faster."""
        kinds = self._candidates()
        ends = np.clip(self._fleet.ends()[:, kinds], 1, np.minimum(self._fleet.limit[kinds], self._most()))
        times = self._fleet.time_s(np.broadcast_to(kinds, ends.shape), ends)
        rates = ends / times
        bar = rates.max() * (1 - TIE)
        end, column = min(zip(*np.nonzero(rates >= bar), strict=True), key=lambda at: (ends[at], at[1]))
        yield self._only(kinds[column], ends[end, column], times[end, column])

    def _alone_of(self, total: int) -> Iterator[_Split]:
        """The fastest device for so many granules alone."""
        kinds = self._candidates()
        for k in self._fleet.micro[total % self._fleet.micro == 0]:
            able = kinds[self._fleet.limit[kinds] >= total / k]
            if len(able):
                times = k * self._fleet.time_s(able, np.full(len(able), total / k))
                yield self._only(able[times.argmin()], float(total), times.min())

    def _only(self, kind: int, units: float, time_s: float) -> _Split:
        """All on the first device of a kind."""
        all_units = np.zeros(len(self._fleet.kind_of))
        all_units[np.argmax(self._fleet.kind_of == kind)] = units
        return _Split(all_units, float(time_s), 0.0)

    def _allocation(self, split: _Split) -> Allocation:
        """With the fewest micro-batches that keep the deadline."""
        fleet = self._fleet
        chosen, times = np.zeros(len(split.units)), np.zeros(len(split.units))
        for k in fleet.micro:
            micro = split.units / k
            able = (chosen == 0) & (split.units > 0) & (micro % 1 == 0) & (micro <= fleet.limit[fleet.kind_of])
            some = np.nonzero(able)[0]
            time_s = k * fleet.time_s(fleet.kind_of[some], micro[some])
            kept = time_s <= split.deadline_s
            chosen[some[kept]], times[some[kept]] = k, time_s[kept]
        units = np.divide(split.units, chosen, out=np.zeros_like(chosen), where=chosen > 0)
        sync_s = self._problem.sync_s if np.count_nonzero(chosen) > 1 else 0.0
        return Allocation(
            split=Shares(_samples(split.units * self._multiple), _samples(units * self._multiple)),
            compute_s=tuple(times.tolist()),
            step_time_s=float(times.max()) + sync_s,
            binds=tuple(self._binds(split, chosen, units)),
        )

    def _binds(self, split: _Split, chosen: Floats, units: Floats) -> Iterator[Binds]:
        """What keeps each device from a granule more in each of its micro-batches.

        "memory": its limit, though the granule would be in time, or the global batch is free; "speed": they would wait
        for it; "granularity": they would not for a sample, but do for a granule; "global batch" and "sync":
        neither, but the samples are all given, or another is faster alone.
        """
        kinds, k = self._fleet.kind_of, np.maximum(chosen, 1)
        in_time = k * self._fleet.time_s(kinds, units + 1) <= split.deadline_s
        free = self._problem.global_batch is None  # then the deadline itself is where the limits leave no more
        full = (units + 1 > self._fleet.limit[kinds]) & (in_time | free)
        for device, load in enumerate(self._problem.loads):
            sample = int(units[device]) * self._multiple + 1
            if full[device]:
                yield "memory"
            elif in_time[device]:
                yield "sync" if split.sync_s == 0 and not chosen[device] else "global batch"
            elif (
                self._multiple > 1
                and sample <= load.limit
                and k[device] * load.model.step_time_s(sample) <= split.deadline_s
            ):
                yield "granularity"
            else:
                yield "speed"


def _spread(fleet: Fleet, deadline_s: float, total: int) -> Floats | None:
    """So many granules by a deadline that is the first for them, without micro-batches; None where they are needed.

    Each device may do any number up to its most, but none is faster for doing less than what it does before the
    deadline. Between the two all are brought to one level, and what is left goes to the first of them.
    """
    times = np.array([math.nextafter(deadline_s, 0), deadline_s])
    low, high = np.maximum(fleet.micro_units(times)[:, 0], fleet.floor)[:, fleet.kind_of]
    if high.sum() < total:
        return None
    level, above = 0, int(high.max()) + 1
    while above - level > 1:
        middle = (level + above) // 2
        level, above = (middle, above) if np.clip(middle, low, high).sum() <= total else (level, middle)
    units: Floats = np.clip(float(level), low, high)
    open_to_more = np.nonzero((low <= level) & (level < high))[0]
    first = open_to_more[np.lexsort((open_to_more, fleet.kind_of[open_to_more]))]
    units[first[: int(total - units.sum())]] += 1
    return units


def _samples(values: Floats) -> tuple[int, ...]:
    return tuple(values.astype(np.int64).tolist())
