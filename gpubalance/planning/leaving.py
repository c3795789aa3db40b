"""Which devices to leave out of the next measurement, to learn whether the others are faster
without them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from gpubalance.planning.allocate import allocated, bound_by_sync, only, requiring
from gpubalance.planning.problem import Allocation, Load, Problem
from gpubalance.planning.sync import Syncs

# Of more devices, or hosts, only the weakest are thought of as left out.
_FEW = 6

Some = frozenset[int]


def without_some(problem: Problem, above: float) -> Allocation | None:
    """A split of fewer devices to measure, as they may be worth more than `above`; None if none
    may.

    A set of devices promises that if what the others add is less than what sync could fall by: if
    its best split with the least sync that it may have (`Syncs.least`) is worth more. What is
    measured is a set that is a part of the most of those, as none of them takes less than its part:
    on a machine with one sync, one measurement then settles them all. Of such sets it is the most
    valuable one, so the weakest devices are left out first.
    """
    sets = [some for some in _smaller(problem, above) if some not in problem.sync.measured]
    values = {some: _value(problem, some, problem.sync.least(some)) for some in sets}
    promising = [some for some, value in values.items() if value > above]
    possible = [some for some, value in values.items() if value]
    if not promising:
        return None

    def settles(some: Some) -> tuple[int, float]:
        return sum(some <= other for other in promising), values[some]

    chosen = max(possible, key=settles)
    found = allocated(requiring(only(problem, chosen), chosen))
    return found and bound_by_sync(problem, found, chosen)


def _value(problem: Problem, some: Some, sync_s: float) -> float:
    """The value of the best split of some devices, if all sets take that sync; 0
    without a split.
    """
    found = allocated(replace(only(problem, some), sync=Syncs(otherwise_s=sync_s), within=0.0))
    return problem.value(found) if found else 0.0


def _smaller(problem: Problem, above: float) -> Iterator[Some]:
    """Sets of two devices or more without some devices, or hosts, that pay only if sync does not
    fall.

    Those that are worth more than their sync, even if it were nothing without them, are in every
    set.
    """
    loads = problem.loads
    able = frozenset(number for number, load in enumerate(loads) if load.limit)
    hosts = sorted({loads[number].host for number in able})
    by_host = [frozenset(number for number in able if loads[number].host == host) for host in hosts]
    sets = set[Some]()
    for units in ([frozenset([number]) for number in sorted(able)], by_host):
        spare = [unit for unit in units if _value(problem, able - unit, 0.0) > above]
        sets.update(able - away for away in _unions(_weakest(loads, spare)))
    yield from sorted((some for some in sets if len(some) > 1), key=sorted)


def _weakest(loads: Sequence[Load], units: Sequence[Some]) -> list[Some]:
    """The units whose devices give the least alone, each at its limit."""

    def rate(number: int) -> float:
        load = loads[number]
        return load.limit / (load.model.step_time_s(load.limit) + load.update_s)

    return sorted(units, key=lambda unit: sum(map(rate, unit)))[:_FEW]


def _unions(units: Sequence[Some]) -> Iterator[Some]:
    for count in range(1, len(units) + 1):
        for chosen in combinations(units, count):
            yield frozenset[int]().union(*chosen)
