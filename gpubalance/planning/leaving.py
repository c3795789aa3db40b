"""Which devices to leave out, to learn if the others are faster alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from itertools import combinations
from typing import TypeAlias

from gpubalance.planning.allocate import allocated, bound_by_sync, only, requiring
from gpubalance.planning.problem import Allocation, Load, Problem
from gpubalance.planning.sync import Syncs

# Of more devices, or hosts, only the weakest are thought of as left out.
_FEW = 6

Devices: TypeAlias = frozenset[int]


def next_subset_to_measure(problem: Problem, above: float) -> Devices | None:
    """The devices to look at next, as with fewer of them a split may be worth more than `above`.

    A set of devices promises that if what the others add is less than what sync could fall by: if
    its best split with the least sync that it may have (`Syncs.minimum`) is worth more. The most
    valuable one is next if a sum is clearly faster over it. Otherwise it is the part of it that
    most of the promising sets have in common, and one whose sums can still tell something if there
    is one. No set takes less than its part, so on a machine with one sync this settles them all.
    None if no set promises more.
    """
    values = {}
    for devices in _smaller(problem, above):
        if devices not in problem.sync.measured:
            values[devices] = _value(problem, devices, problem.sync.minimum(devices))
    promising = [devices for devices, value in values.items() if value > above]
    if not promising:
        return None
    best = max(promising, key=values.__getitem__)
    parts = [part for part in values if part <= best and values[part]]
    if problem.sync.nothing_more_to_learn(best):
        if problem.sync.may_be_faster(best):
            return best
    else:
        parts = [part for part in parts if not problem.sync.nothing_more_to_learn(part)]

    def settled(part: Devices) -> tuple[int, float]:
        return sum(part <= devices for devices in promising), values[part]

    return max(parts, key=settled)


def split_of_all(problem: Problem, devices: Devices) -> Allocation | None:
    """The best split in which just these devices have samples, or None.

    It counts on the least sync that they may have, if sums have told of it.
    """
    sync_s = problem.sync.of(devices)
    if problem.sync.smallest_measured_superset(devices):
        sync_s = problem.sync.minimum(devices)
    allocation = _allocated(requiring(problem, devices), devices, sync_s)
    return allocation and bound_by_sync(problem, allocation, devices)


def _value(problem: Problem, devices: Devices, sync_s: float) -> float:
    """The value of the devices' best split if all sets take that sync; 0 without a split."""
    allocation = _allocated(replace(problem, within=0.0), devices, sync_s)
    if allocation is None:
        return 0.0
    return problem.value(allocation)


def _allocated(problem: Problem, devices: Devices, sync_s: float) -> Allocation | None:
    one_sync = Syncs(otherwise_s=sync_s)
    return allocated(replace(only(problem, devices), sync=one_sync))


def _smaller(problem: Problem, above: float) -> list[Devices]:
    """Sets of two devices or more without some devices, or hosts, that pay only if sync stays.

    Those that are worth more than their sync, even if it were nothing without them, are in every
    set.
    """
    able = [number for number, load in enumerate(problem.loads) if load.limit]
    hosts: dict[int, set[int]] = defaultdict(set)
    for number in able:
        hosts[problem.loads[number].host].add(number)
    by_host = [hosts[host] for host in sorted(hosts)]
    sets = set()
    for units in ([{number} for number in able], by_host):
        spare = [
            unit
            for unit in units
            if _value(problem, frozenset(able) - unit, 0.0) > above
        ]
        for away in _unions(_weakest(problem.loads, spare)):
            if len(able) - len(away) > 1:
                sets.add(frozenset(able) - away)
    return sorted(sets, key=sorted)


def _weakest(loads: Sequence[Load], units: Sequence[Set[int]]) -> list[Set[int]]:
    """The units whose devices give the least alone, each at its limit."""

    def rate(number: int) -> float:
        load = loads[number]
        return load.limit / (load.model.step_time_s(load.limit) + load.update_s)

    return sorted(units, key=lambda unit: sum(map(rate, unit)))[:_FEW]


def _unions(units: Sequence[Set[int]]) -> Iterator[Devices]:
    for count in range(1, len(units) + 1):
        for chosen in combinations(units, count):
            yield frozenset[int]().union(*chosen)
