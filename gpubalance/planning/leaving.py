"""Which devices to leave out, to learn if the others are faster alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from itertools import combinations
from typing import TypeAlias

from gpubalance.planning.allocate import (
    allocate_or_none,
    marked_left_out_for_sync,
    with_only,
    with_required,
)
from gpubalance.planning.problem import Allocation, Load, Problem
from gpubalance.planning.sync import Syncs

# At most this many devices (or hosts), the slowest, are candidates for leaving out. All their
# subsets are tried: 2^6 at most.
_MAX_CANDIDATES = 6

Devices: TypeAlias = frozenset[int]


def next_subset_to_measure(problem: Problem, above: float) -> Devices | None:
    """The devices to learn about next, because a split over fewer may be worth more than `above`.

    A balance asks this between its rounds, until it is None. It times sums of gradients over the
    devices, or measures their best split if sums can teach nothing more about them
    (`Syncs.nothing_more_to_learn`). `above` is a value of the objective, as samples/s: 1.004 × that
    of the best split.

    A set of devices is promising if its best split would be worth more than `above` even with the
    least sync that it can have (`Syncs.minimum`).
    1. Take the most valuable promising set. Without one, return None.
    2. If sums can teach nothing more about it, and its sum may be clearly faster than over its
       superset, return it.
    3. Else return the subset of it (or itself) that is in most of the promising sets. If sums can
       teach more about the set, it is one about which they can, too.

    A sum over a set is taken to be no faster than over its subset. So where all sums take equally
    long, one timing over the subset rules out every set.
    """
    values = {}
    for devices in _candidate_sets(problem, above):
        if devices not in problem.sync.measured:
            values[devices] = _value(problem, devices, problem.sync.minimum(devices))
    promising = [devices for devices, value in values.items() if value > above]
    if not promising:
        return None
    best = max(promising, key=values.__getitem__)
    # A subset that can't take the global batch has a value of 0.
    subsets = [subset for subset in values if subset <= best and values[subset] > 0]
    if not problem.sync.nothing_more_to_learn(best):
        subsets = [
            subset
            for subset in subsets
            if not problem.sync.nothing_more_to_learn(subset)
        ]
    elif problem.sync.may_be_faster(best):
        return best

    def sets_decided_by(subset: Devices) -> tuple[int, float]:
        return sum(subset <= devices for devices in promising), values[subset]

    return max(subsets, key=sets_decided_by)


def best_split_using_exactly(problem: Problem, devices: Devices) -> Allocation | None:
    """The best split in which all these devices have samples and no others, or None.

    It assumes the least sync that they may have (`Syncs.optimistic`).
    """
    sync_s = problem.sync.optimistic(devices)
    allocation = _best_over(with_required(problem, devices), devices, sync_s)
    if allocation is None:
        return None
    return marked_left_out_for_sync(problem, allocation, devices)


def _value(problem: Problem, devices: Devices, sync_s: float) -> float:
    """The value of the best split over these devices with that sync; 0 without a split."""
    allocation = _best_over(
        replace(problem, micro_batch_tolerance=0.0), devices, sync_s
    )
    if allocation is None:
        return 0.0
    return problem.value(allocation)


def _best_over(problem: Problem, devices: Devices, sync_s: float) -> Allocation | None:
    """The best split over these devices or some of them, if each set of them has that sync."""
    one_sync = Syncs(otherwise_s=sync_s)
    return allocate_or_none(replace(with_only(problem, devices), sync=one_sync))


def _candidate_sets(problem: Problem, above: float) -> list[Devices]:
    """All able devices minus some devices, or some hosts, whose removal may pay. Two stay at least.

    Without a device that may be removed, the others' split is worth more than `above` if their sync
    is 0. Of these devices the slowest are removed, in every combination; likewise hosts.
    """
    able = frozenset(number for number, load in enumerate(problem.loads) if load.limit)
    hosts: dict[int, set[int]] = defaultdict(set)
    for number in able:
        hosts[problem.loads[number].host].add(number)
    by_device: list[Set[int]] = [{number} for number in sorted(able)]
    by_host: list[Set[int]] = [hosts[host] for host in sorted(hosts)]
    sets = set()
    for groups in (by_device, by_host):
        removable_groups = [
            group for group in groups if _value(problem, able - group, 0.0) > above
        ]
        for removed in _unions(_slowest(problem.loads, removable_groups)):
            if len(able) - len(removed) > 1:
                sets.add(able - removed)
    return sorted(sets, key=sorted)


def _slowest(loads: Sequence[Load], groups: Sequence[Set[int]]) -> list[Set[int]]:
    """At most `_MAX_CANDIDATES` groups, those with the fewest samples/s at their batch limits."""

    def rate(number: int) -> float:
        load = loads[number]
        return load.limit / (load.model.step_time_s(load.limit) + load.update_s)

    by_rate = sorted(groups, key=lambda group: sum(map(rate, group)))
    return by_rate[:_MAX_CANDIDATES]


def _unions(groups: Sequence[Set[int]]) -> Iterator[Devices]:
    """The union of each combination of one group or more."""
    for count in range(1, len(groups) + 1):
        for chosen in combinations(groups, count):
            yield frozenset[int]().union(*chosen)
