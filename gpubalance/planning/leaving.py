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

# The slowest devices are candidates for leaving out, at most this many. All their subsets are
# tried, and likewise those of the slowest hosts: at most 2^6 each.
_MAX_CANDIDATES = 6

Devices: TypeAlias = frozenset[int]


def next_subset_to_measure(problem: Problem, value_to_beat: float) -> Devices | None:
    """The devices to time or measure next, or None if no split over fewer devices is promising.

    `_fewer_devices` in jobs/balance/rounds.py calls this between two rounds. If sums can tell more
    about the returned devices (`Syncs.sums_can_show_more`), the caller times sums of gradients over
    them and calls again. Otherwise, or once many sums were timed, the next round measures the best
    split of these devices. `value_to_beat` is 1.004 × the `Problem.value` of the best split,
    measured or planned: samples/s, or goodput if the request has a noise scale.

    A set of devices is promising if its best split would be worth more than `value_to_beat` with
    the least sync that the set may have (`Syncs.minimum`). A sum over a set is assumed to take at
    least as long as over each subset, and likewise sync. So if the sets 012 and 013 are promising,
    a slow sum over their subset 01 rules out both.
    1. Take the most valuable promising set. Without a promising set, return None.
    2. If sums can tell more about the set: of the set and its subsets, consider those about which
       sums can tell more. Return the one that lies in the most promising sets.
    3. If the set's sum was timed, and may be clearly faster than the sum over the superset: return
       the set. Its sync is probably shorter.
    4. Otherwise sums don't show the set to be faster, but only a round can rule it out. Of the set
       and its subsets, return the one that lies in the most promising sets: if that one's sum or
       sync turns out long, all of these sets are ruled out.
    """
    sync = problem.sync
    max_values = {}  # each set's, with the least sync that the set may have
    for devices in _candidate_sets(problem, value_to_beat):
        if devices not in sync.measured:
            max_values[devices] = _value(problem, devices, sync.minimum(devices))
    promising = [
        devices for devices, value in max_values.items() if value > value_to_beat
    ]
    if not promising:
        return None
    best = max(promising, key=max_values.__getitem__)
    # The set itself counts as a subset. One that can't take the global batch has a value of 0.
    subsets = [
        subset for subset in max_values if subset <= best and max_values[subset] > 0
    ]
    if sync.sums_can_show_more(best):
        subsets = [subset for subset in subsets if sync.sums_can_show_more(subset)]
    elif sync.sum_may_be_faster(best):  # its sum was timed: sums show no more of it
        return best

    def promising_sets_and_value(subset: Devices) -> tuple[int, float]:
        return sum(subset <= devices for devices in promising), max_values[subset]

    return max(subsets, key=promising_sets_and_value)


def best_split_using_exactly(problem: Problem, devices: Devices) -> Allocation | None:
    """The best split in which all these devices have samples and no others, or None.

    The split is planned with the least sync that the devices may have. If no measured set contains
    the devices, it is planned with the longest measured sync (see `Syncs.optimistic`).
    """
    sync_s = problem.sync.optimistic(devices)
    allocation = _best_over(with_required(problem, devices), devices, sync_s)
    if allocation is None:
        return None
    return marked_left_out_for_sync(problem, allocation, devices)


def _value(problem: Problem, devices: Devices, sync_s: float) -> float:
    """The value of the best split over these devices with that sync; 0 without a split."""
    # A tolerance would give up some of the value for fewer micro-batches.
    allocation = _best_over(
        replace(problem, micro_batch_tolerance=0.0), devices, sync_s
    )
    if allocation is None:
        return 0.0
    return problem.value(allocation)


def _best_over(problem: Problem, devices: Devices, sync_s: float) -> Allocation | None:
    """The best split over these devices or a subset; two or more have a sync of `sync_s`."""
    one_sync = Syncs(otherwise_s=sync_s)
    return allocate_or_none(replace(with_only(problem, devices), sync=one_sync))


def _candidate_sets(problem: Problem, value_to_beat: float) -> list[Devices]:
    """The sets to try: all able devices, less some whose removal may pay.

    An able device can take samples. Its removal may pay if the split of all other able devices
    would be worth more than `value_to_beat` with a sync of 0. Of the devices whose removal may pay,
    the slowest are removed, in every combination that leaves two devices or more. The same is done
    with whole hosts.
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
            group
            for group in groups
            if _value(problem, able - group, 0.0) > value_to_beat
        ]
        for removed in _unions(_slowest(problem.loads, removable_groups)):
            if len(able) - len(removed) > 1:
                sets.add(able - removed)
    return sorted(sets, key=sorted)


def _slowest(loads: Sequence[Load], groups: Sequence[Set[int]]) -> list[Set[int]]:
    """At most `_MAX_CANDIDATES` groups, those with the fewest samples/s at their batch limits."""

    def samples_per_s(number: int) -> float:
        load = loads[number]
        compute_s = load.model.step_time_s(load.limit)  # the update is not in it
        return load.limit / (compute_s + load.update_s)

    slowest_first = sorted(groups, key=lambda group: sum(map(samples_per_s, group)))
    return slowest_first[:_MAX_CANDIDATES]


def _unions(groups: Sequence[Set[int]]) -> Iterator[Devices]:
    """The union of each combination of one group or more."""
    for count in range(1, len(groups) + 1):
        for chosen in combinations(groups, count):
            yield frozenset[int]().union(*chosen)
