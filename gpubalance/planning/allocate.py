"""Finds the best split, each device's samples and micro-batches, from the devices' step times."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from gpubalance.planning.fleet import TIE
from gpubalance.planning.problem import (
    Allocation,
    Binds,
    NoSplitError,
    Problem,
    TooFineError,
)
from gpubalance.planning.solver import Solver

# Of a sum of times
_ROUNDING = 1e-9
# What half a global batch may cost of the value: a larger one takes longer to measure, fills memory
# and costs learning progress that throughput does not show.
FLAT = 0.005


def allocate(problem: Problem) -> Allocation:
    """The most valuable split; with a global batch, the best of that size.

    Raises NoSplitError and TooFineError.

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
    low = 0
    high = problem.micro_batches
    # The best never falls with K: a split for K is one for K + 1 too
    while high - low > 1:
        middle = (low + high) // 2
        fewer = allocated(replace(problem, micro_batches=middle, within=0.0))
        if fewer and problem.value(fewer) >= bar:
            high = middle
            best = fewer
        else:
            low = middle
    return best


def _of_all_sets(problem: Problem) -> Allocation:
    """The best split of any set of devices."""
    best = _of_set(problem, frozenset(range(len(problem.loads))))
    for devices in sorted(problem.sync.measured, key=len, reverse=True):
        allocation = _of_set_or_none(problem, devices)
        if allocation is None:
            continue
        if best is None or problem.value(allocation) > problem.value(best) * (1 + TIE):
            best = bound_by_sync(problem, allocation, devices)
    if best is None:
        raise NoSplitError("no split has all the devices that must have samples")
    return best


def _of_set(problem: Problem, devices: frozenset[int]) -> Allocation | None:
    """The best split over these devices, or over a part of them that needs no more sync."""
    sync_s = problem.sync.of(devices)
    allocation = Solver(only(problem, devices), sync_s).best()
    used = frozenset(allocation.split.used)
    if problem.sync.of(used) <= sync_s:
        return allocation
    # A part that was measured takes longer than the whole: what is asked for has a device that this
    # part lacks.
    best = None
    for device in sorted(devices - problem.sync.smallest_measured_superset(used)):
        allocation_with_it = _of_set_or_none(requiring(problem, {device}), devices)
        if allocation_with_it is None:
            continue
        if best is None or problem.value(allocation_with_it) > problem.value(best):
            best = allocation_with_it
    return best


def _of_set_or_none(problem: Problem, devices: frozenset[int]) -> Allocation | None:
    try:
        return _of_set(problem, devices)
    except (NoSplitError, TooFineError):
        return None


def as_measured(problem: Problem, allocation: Allocation) -> Allocation:
    """The same split with the time of each device's own batch, though a larger one may take less.

    The solver counts a batch as done when a larger one would be.
    """
    split = allocation.split
    computes_s = list(allocation.compute_s)
    for device in split.used:
        load = problem.loads[device]
        own_s = load.compute_s(split.batches[device], split.micro_batches[device])
        if own_s > computes_s[device] * (1 + _ROUNDING):
            computes_s[device] = own_s
    later_s = _busy_s(problem, computes_s) - _busy_s(problem, allocation.compute_s)
    return replace(
        allocation,
        compute_s=tuple(computes_s),
        step_time_s=allocation.step_time_s + later_s,
    )


def smallest_on_plateau(problem: Problem, best: Allocation) -> Allocation:
    """The best split of a half, a quarter … of the global batch, while the value stays.

    That is within `FLAT` of the best split's, with the same devices. A global batch that is asked
    for stays.
    """
    if problem.global_batch is not None:
        return best
    bar = (1 - FLAT) * problem.value(best)
    smaller = best
    while True:
        half = replace(problem, max_global_batch=smaller.split.global_batch // 2)
        found = allocated(half)
        if found is None or found.split.used != best.split.used:
            return smaller
        found = as_measured(half, found)
        if problem.value(found) < bar:
            return smaller
        binds: list[Binds] = []
        for batch, bound in zip(found.split.batches, found.binds, strict=True):
            binds.append("plateau" if batch and bound != "memory" else bound)
        smaller = replace(found, binds=tuple(binds))


def _busy_s(problem: Problem, computes_s: Sequence[float]) -> float:
    """How long the slowest device computes and updates."""
    busy_s = [0.0]
    for load, compute_s in zip(problem.loads, computes_s, strict=True):
        if compute_s:
            busy_s.append(compute_s + load.update_s)
    return max(busy_s)


def requiring(problem: Problem, devices: Set[int]) -> Problem:
    """The problem in which these devices get samples, too."""
    loads = list(problem.loads)
    for device in devices:
        loads[device] = replace(loads[device], required=True)
    return replace(problem, loads=tuple(loads))


def only(problem: Problem, devices: Set[int]) -> Problem:
    """The problem in which the other devices can do nothing."""
    loads = list(problem.loads)
    for device in set(range(len(loads))) - devices:
        loads[device] = replace(loads[device], limit=0)
    return replace(problem, loads=tuple(loads))


def bound_by_sync(
    problem: Problem, allocation: Allocation, devices: Set[int]
) -> Allocation:
    """A split of some devices: the others have no samples only for the sync that they may cost."""
    binds = list(allocation.binds)
    for device, load in enumerate(problem.loads):
        if device not in devices and load.limit:
            binds[device] = "sync"
    return replace(allocation, binds=tuple(binds))


def gain(problem: Problem, device: int) -> float | None:
    """The fraction by which a device raises the objective: below 0 if it is not worth adding.

    The best split with at least one granule on it, against the best without it; None if there is no
    such split.
    """
    others = set(range(len(problem.loads))) - {device}
    within = allocated(requiring(problem, {device}))
    without = allocated(only(problem, others))
    if within is None or without is None:
        return None
    return problem.value(within) / problem.value(without) - 1


def allocated(problem: Problem) -> Allocation | None:
    """What `allocate` gives; None without a split, or if batches are too fine for the solver."""
    try:
        return allocate(problem)
    except (NoSplitError, TooFineError):
        return None
