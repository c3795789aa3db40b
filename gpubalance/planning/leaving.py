"""Which devices to leave out of the next measurement, to learn if the others are faster alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import combinations
from typing import TypeAlias

from gpubalance.planning.allocate import allocated, bound_by_sync, only, requiring
from gpubalance.planning.problem import Allocation, Load, Problem
from gpubalance.planning.sync import Syncs

# Of more devices, or hosts, only the weakest are thought of as left out.
_FEW = 6

Devices: TypeAlias = frozenset[int]


def without_some(problem: Problem, above: float) -> Allocation | None:
    """A split of fewer devices to measure, as they may be worth more than `above`, or None.

    A set of devices promises that if what the others add is less than what sync could fall by: if
    its best split with the least sync that it may have (`Syncs.least`) is worth more. What is
    measured is a set that is a part of the most of those, as none of them takes less than its part:
    on a machine with one sync, one measurement then settles them all. Of such sets it is the most
    valuable one, so the weakest devices are left out first.
    """
    values = {}
    for devices in _smaller(problem, above):
        if devices not in problem.sync.measured:
            values[devices] = _value(problem, devices, problem.sync.least(devices))
    promising = [devices for devices, value in values.items() if value > above]
    if not promising:
        return None
    chosen = max(values, key=lambda devices: _settled(devices, values, promising))
    allocation = allocated(requiring(only(problem, chosen), chosen))
    return allocation and bound_by_sync(problem, allocation, chosen)


def _settled(
    devices: Devices, values: Mapping[Devices, float], promising: Sequence[Devices]
) -> tuple[bool, int, float]:
    """A sort key: sets that have a split, then those that are a part of more of the promising."""
    value = values[devices]
    return value > 0, sum(devices <= other for other in promising), value


def _value(problem: Problem, devices: Devices, sync_s: float) -> float:
    """The value of the devices' best split if all sets take that sync; 0 without a split."""
    one_sync = replace(
        only(problem, devices), sync=Syncs(otherwise_s=sync_s), within=0.0
    )
    allocation = allocated(one_sync)
    if allocation is None:
        return 0.0
    return problem.value(allocation)


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
