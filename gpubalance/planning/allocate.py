"""Finds the best split, each device's samples and micro-batches, from the devices' step times."""

from __future__ import annotations

from collections.abc import Set
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

# Two sums of the same times, added in another order, differ by at most this fraction.
_ROUNDING = 1e-9
# The global batch is halved if that loses at most this fraction of the value: a larger batch takes
# longer to measure, fills memory and costs learning progress that throughput does not show.
_MAX_HALVING_LOSS = 0.005


def allocate(problem: Problem) -> Allocation:
    """The most valuable split; with a global batch, the best of that size.

    Raises NoSplitError and TooFineError.

    Problem: a device computes b samples in c(b) seconds (see `Fleet`), and updates its weights in u
    seconds; without samples it does neither. If a larger batch that it may have was measured
    faster, c(b) is the larger batch's time, so that c never falls as b grows. The split then gives
    the device the larger batch if the other devices can have fewer samples; if not, see
    `as_measured`. Samples come in granules of `problem.multiple`. The split has a global batch of B
    = Σb samples and a step time of T = D + s(D), with D = max (c(b) + u). Maximise
    `problem.objective` of B and T, usually the throughput B/T.

    The sync s(D) depends on the set of devices that have samples (`Syncs.curve`); D + s(D) never
    falls as D grows. B is `global_batch`, or free up to `max_global_batch`. A required device gets
    at least one granule.

    (The all-reduce is the only barrier. A device starts its next batch right after its own update,
    so u adds to c, and T has no separate max u over all devices.)

    Example: three devices take 10 ms a step and 1, 1 and 4 ms a sample, for at most 30 samples
    each; s is 5 ms. By a deadline of 40 ms they can have done 30, 30 and 7 samples: 67 / 45 ms =
    1489 samples/s. By 38 ms it is 63 / 43 ms = 1465, by 42 ms 68 / 47 ms = 1447. The first two
    devices alone have done their 60 by 40 ms: 60 / 45 ms = 1333. So the best split is 30/30/7.

    Method:
    1. With one s for all sets: by a deadline D each device can have done any number of granules up
       to a maximum F(D). A split of several devices has min(ΣF(D), largest B) samples in D + s(D)
       seconds; a device alone has its F(D) in D seconds. `best_deadline` in planning/solver.py
       finds the best D for several devices, and the best device alone with its D. The better of the
       two results is taken. The search for several may end with a split of one device. That split
       was charged a sync which a device alone doesn't have, so the search for one device finds a
       split at least as good.
    2. With several s: the search runs over all devices and over each measured set, each time with
       that set's s. The sync of a set is that of its smallest measured superset, so the best of the
       results is the best of all splits.
    3. With a `micro_batch_tolerance` and a free global batch: bisect for the fewest micro-batches
       whose best split is nearly as good.

    Ties, within 1e-12, are decided in this order: more devices before fewer, so that a device is
    left out only if that is better; the shorter step, which is the smaller global batch; batches as
    even as the deadline allows; the first of equal devices. A device takes the fewest micro-batches
    that keep the deadline; their sizes are as equal as they can be without taking longer.
    """
    best = _best_over_all_sets(problem)
    if not problem.micro_batch_tolerance or problem.global_batch is not None:
        return best
    value_wanted = problem.value(best) * (1 - problem.micro_batch_tolerance)
    # The best value never falls with more micro-batches allowed: bisect for the fewest.
    too_few = 0
    enough = problem.micro_batches
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        with_fewer = allocate_or_none(
            replace(problem, micro_batches=middle, micro_batch_tolerance=0.0)
        )
        if with_fewer and problem.value(with_fewer) >= value_wanted:
            enough = middle
            best = with_fewer
        else:
            too_few = middle
    return best


def allocate_or_none(problem: Problem) -> Allocation | None:
    """What `allocate` gives; None without a split, or if granules are too fine for the solver."""
    try:
        return allocate(problem)
    except (NoSplitError, TooFineError):
        return None


def _best_over_all_sets(problem: Problem) -> Allocation:
    """The best split of any set of devices."""
    best = _best_within_set(problem, frozenset(range(len(problem.loads))))
    for devices in sorted(problem.sync.measured, key=len, reverse=True):
        allocation = _best_within_set_or_none(problem, devices)
        if allocation is None:
            continue
        if best is None or problem.value(allocation) > problem.value(best) * (1 + TIE):
            best = marked_left_out_for_sync(problem, allocation, devices)
    if best is None:
        raise NoSplitError("no split gives samples to every device that must have some")
    return best


def _best_within_set(problem: Problem, devices: frozenset[int]) -> Allocation | None:
    """The best split over these devices or a subset whose sync is not longer than theirs.

    Raises NoSplitError and TooFineError; None if only subsets with a longer sync have a split.
    """
    sync = problem.sync.curve(devices)
    allocation = Solver(with_only(problem, devices), sync).best()
    used = frozenset(allocation.split.used)
    busy_s = problem.busy_s(allocation.compute_s)
    if problem.sync.curve(used).at(busy_s) <= sync.at(busy_s):
        return allocation
    # The split was charged too little: `used` lies in a smaller set with more sync. Example: {0, 1}
    # was measured with more sync than {0, 1, 2}, and the search over {0, 1, 2} used only 0 and 1.
    # 1. Splits inside this slow set are left to `_best_over_all_sets`, which also searches {0, 1}.
    # 2. Every other split uses a device outside the slow set, here 2. So search {0, 1, 2} again for
    #    each such device, with the device required, and take the best result.
    # 3. Such a search may meet another slow set. It then requires one device more in the same way.
    #    This ends at the latest when all devices are required.
    slow_set = problem.sync.smallest_measured_superset(used)
    best = None
    for device in sorted(devices - slow_set):
        requiring_it = with_required(problem, {device})
        allocation_with_it = _best_within_set_or_none(requiring_it, devices)
        if allocation_with_it is None:
            continue
        if best is None or problem.value(allocation_with_it) > problem.value(best):
            best = allocation_with_it
    return best


def _best_within_set_or_none(
    problem: Problem, devices: frozenset[int]
) -> Allocation | None:
    try:
        return _best_within_set(problem, devices)
    except (NoSplitError, TooFineError):
        return None


def as_measured(problem: Problem, allocation: Allocation) -> Allocation:
    """The same split with the measured time of each device's own batch.

    The solver uses a curve that never falls: a batch that was measured slower than a larger one
    counts with the larger one's time. The solver avoids such a batch, unless the other devices
    can't have fewer samples. Here it counts with its own time.
    """
    split = allocation.split
    computes_s = list(allocation.compute_s)
    for device in split.used:
        load = problem.loads[device]
        own_s = load.compute_s(split.batches[device], split.micro_batches[device])
        if own_s > computes_s[device] * (1 + _ROUNDING):
            computes_s[device] = own_s
    # The sync that the solver charged stays, which may be a larger set's. `problem.step_time_s`
    # charges that of the used devices: only by how much it gets longer is added.
    old_step_s = problem.step_time_s(allocation.compute_s)
    added_s = problem.step_time_s(computes_s) - old_step_s
    return replace(
        allocation,
        compute_s=tuple(computes_s),
        step_time_s=allocation.step_time_s + added_s,
    )


def allocate_as_measured(problem: Problem) -> Allocation | None:
    """What `allocate_or_none` gives, `as_measured`."""
    allocation = allocate_or_none(problem)
    return allocation and as_measured(problem, allocation)


def smallest_on_plateau(problem: Problem, best: Allocation) -> Allocation:
    """Halves the global batch of the best split as long as that costs little.

    All halvings together may lose at most `_MAX_HALVING_LOSS` of the best split's value, and the
    same devices stay in use. A global batch that the user asks for is not halved.
    """
    if problem.global_batch is not None:
        return best
    value_wanted = (1 - _MAX_HALVING_LOSS) * problem.value(best)
    smallest = best
    while True:
        half = replace(problem, max_global_batch=smallest.split.global_batch // 2)
        halved = allocate_as_measured(half)
        if halved is None or halved.split.used != best.split.used:
            return smallest
        if problem.value(halved) < value_wanted:
            return smallest
        reasons: list[Binds] = []  # why each device gets no more samples
        for batch, reason in zip(halved.split.batches, halved.binds, strict=True):
            reasons.append("plateau" if batch and reason != "memory" else reason)
        smallest = replace(halved, binds=tuple(reasons))


def with_required(problem: Problem, devices: Set[int]) -> Problem:
    """The problem in which these devices must get samples, besides those that must already."""
    loads = list(problem.loads)
    for device in devices:
        loads[device] = replace(loads[device], required=True)
    return replace(problem, loads=tuple(loads))


def with_only(problem: Problem, devices: Set[int]) -> Problem:
    """The problem in which the other devices can take no samples."""
    loads = list(problem.loads)
    for device in set(range(len(loads))) - devices:
        loads[device] = replace(loads[device], limit=0)
    return replace(problem, loads=tuple(loads))


def marked_left_out_for_sync(
    problem: Problem, allocation: Allocation, devices: Set[int]
) -> Allocation:
    """A split found for `devices` only, with "sync" as the reason why the others have no samples.

    Devices that could take no samples at all keep their reason.
    """
    reasons = list(allocation.binds)
    for device, load in enumerate(problem.loads):
        if device not in devices and load.limit:
            reasons[device] = "sync"
    return replace(allocation, binds=tuple(reasons))


def added_fraction(problem: Problem, device: int) -> float | None:
    """The fraction by which a device raises the value: below 0 if it is not worth adding.

    The best split with at least one granule on the device is compared with the best split without
    the device. None if either does not exist. jobs/plan/plan.py calls this for each device that a
    plan leaves out.
    """
    others = set(range(len(problem.loads))) - {device}
    with_it = allocate_as_measured(with_required(problem, {device}))
    without_it = allocate_as_measured(with_only(problem, others))
    if with_it is None or without_it is None:
        return None
    return problem.value(with_it) / problem.value(without_it) - 1
