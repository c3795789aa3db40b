"""Which sets of devices are worth a measurement, as their sync may be less."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from gpubalance.planning.allocate import allocate
from gpubalance.planning.leaving import (
    Devices,
    best_split_using_exactly,
    next_subset_to_measure,
)
from gpubalance.planning.model import Line
from gpubalance.planning.problem import Load, Problem
from gpubalance.planning.sync import Syncs
from tests.planning.splits import by_set, random_loads, subsets
from tests.support.cases import cases

FAST, SLOW, SLOWEST = (
    Load(Line(0.02, beta_s, 0.0), 100) for beta_s in (0.001, 0.01, 0.02)
)

EVERYWHERE = frozenset(range(64))


def next_one(problem: Problem) -> str:
    """`time 01` or `measure 01`: what comes next for which devices, or nothing.

    Each of the splits before has the sync that is known.
    """
    devices = next_subset_to_measure(problem, 1.005 * problem.value(allocate(problem)))
    if devices is None:
        return ""
    what = "time" if problem.sync.sums_can_show_more(devices) else "measure"
    return f"{what} {''.join(map(str, sorted(devices)))}"


ALL_12_MS = by_set(abc=0.012)


@cases(
    "measured_s, sums_s, expected",
    (by_set(abc=0.002), {}, ""),  # each adds more than that
    (ALL_12_MS, {}, "time 01"),  # the weakest adds less
    (ALL_12_MS, by_set(abc=0.02, ab=0.02), ""),  # a sum takes as long without it
    (ALL_12_MS, by_set(abc=0.02, ab=0.019), ""),  # it adds more than that
    (ALL_12_MS, by_set(abc=0.02, ab=0.009), "measure 01"),
    # It did not help
    (by_set(abc=0.012, ab=0.0119), by_set(abc=0.02, ab=0.009), ""),
    # It did; others add at least 1 ms
    (by_set(abc=0.012, ab=0.001), by_set(abc=0.02, ab=0.009), ""),
)
def test_a_device_that_adds_less_than_sync_could_fall_by_is_left_out_once(
    measured_s: dict[Devices, float], sums_s: dict[Devices, float], expected: str
) -> None:
    syncs = Syncs(measured_s, sums_s=sums_s)
    assert next_one(Problem((FAST, FAST, SLOWEST), syncs)) == expected


def test_sums_over_their_common_part_settle_all_sets() -> None:
    before = Syncs(by_set(abcd=0.015))
    problem = Problem((FAST, SLOW, FAST, SLOWEST), before)
    assert next_one(problem) == "time 02"
    as_long = replace(before, sums_s=by_set(abcd=0.02, ac=0.02))
    assert next_one(replace(problem, sync=as_long)) == ""
    # One of the slow ones may be what takes so long.
    faster = replace(before, sums_s=by_set(abcd=0.02, ac=0.002))
    assert next_one(replace(problem, sync=faster)) == "time 012"


def test_a_split_of_fewer_devices_counts_on_what_sums_tell() -> None:
    syncs = Syncs(ALL_12_MS, sums_s=by_set(abc=0.02, ab=0.009))
    problem = Problem((FAST, FAST, SLOWEST), syncs)
    found = best_split_using_exactly(problem, frozenset({0, 1}))
    assert found is not None
    assert found.split.used == (0, 1)
    assert found.binds[2] == "sync"
    sync_s = problem.sync.minimum({0, 1})
    assert 0 < sync_s < 0.001
    assert found.step_time_s == pytest.approx(max(found.compute_s) + sync_s)


def test_two_devices_need_none_as_one_alone_has_no_sync() -> None:
    assert next_one(Problem((FAST, SLOWEST), Syncs(by_set(ab=0.1)))) == ""


def test_a_device_whose_limit_fell_to_nothing_has_no_rate() -> None:
    """It takes no time for its 0 samples."""
    nothing = Load(Line(0.0, 0.001, 0.0), 0)
    syncs = Syncs(ALL_12_MS)
    assert next_one(Problem((FAST, SLOW, SLOWEST, nothing), sync=syncs)) == "time 01"


def test_a_set_that_can_not_take_the_global_batch_is_not_tried() -> None:
    problem = Problem((FAST, FAST, SLOWEST), Syncs(ALL_12_MS), global_batch=201)
    assert next_one(problem) == ""


def test_of_many_devices_a_whole_host_is_left_out() -> None:
    loads = tuple(replace(FAST, host=device // 8) for device in range(32))
    near = frozenset(range(8, 32))
    before = Problem(loads, Syncs({EVERYWHERE: 0.05}))
    measured_s, _, _ = all_that_is_tried(
        before, lambda devices: 0.002 if devices <= near else 0.05
    )
    assert allocate(Problem(loads, Syncs(measured_s))).split.used == tuple(sorted(near))


FEW_WEAK = (FAST,) * 4 + (Load(Line(0.02, 0.05, 0.0), 64),) * 3
MANY_EQUAL = tuple(replace(FAST, host=device // 8) for device in range(64))


@pytest.mark.parametrize(
    ("loads", "sync_s", "hidden_s"),
    [(FEW_WEAK, 0.006, 0.084), (MANY_EQUAL, 0.05, 0.0), (MANY_EQUAL, 0.05, 0.25)],
)
def test_where_sums_tell_too_little_a_round_without_weak_devices_decides(
    loads: tuple[Load, ...], sync_s: float, hidden_s: float
) -> None:
    """Where sums tell too little a round without all weak devices settles it.

    A sum may be 3 % off, which is more than these devices add, or than there is of sync.
    """
    everywhere = frozenset(range(len(loads)))
    measured_s, sums_s, _ = all_that_is_tried(
        Problem(loads, Syncs({everywhere: sync_s})), lambda _: sync_s, hidden_s
    )
    assert len(measured_s) <= 2
    assert len(sums_s) <= 3


def all_that_is_tried(
    problem: Problem, true_s: Callable[[Devices], float], hidden_s: float = 0.0
) -> tuple[dict[Devices, float], dict[Devices, float], float]:
    """The sync of all measured sets and the sums before none promises more, and what none exceeds.

    A sum takes `hidden_s` more than sync does.
    """
    measured_s = dict(problem.sync.measured)
    sums_s: dict[Devices, float] = {}
    while True:
        problem = replace(problem, sync=Syncs(measured_s, sums_s=sums_s))
        above = 1.005 * problem.value(allocate(problem))
        devices = next_subset_to_measure(problem, above)
        if devices is None:
            return measured_s, sums_s, above
        if problem.sync.sums_can_show_more(devices):
            for timed in (devices, problem.sync.smallest_measured_superset(devices)):
                sums_s[timed] = true_s(timed) + hidden_s
        else:
            measured_s[devices] = true_s(devices)


@pytest.mark.parametrize("seed", range(60))
def test_no_set_that_is_worth_more_is_missed(seed: int) -> None:
    """A set takes the longest sync of its devices, and sums take some time more."""
    random = Random(seed)
    loads = random_loads(random, random.randint(3, 5), 12)
    own_s = [random.uniform(0, 0.1) for _ in loads]
    several = [frozenset(used) for used in subsets(len(loads)) if len(used) > 1]
    true_s = {used: max(own_s[device] for device in used) for used in several}
    problem = Problem(loads, Syncs({several[-1]: true_s[several[-1]]}))
    measured_s, _, above = all_that_is_tried(
        problem, true_s.__getitem__, random.uniform(0, 0.02)
    )
    best = allocate(replace(problem, sync=Syncs(true_s)))
    assert problem.value(best) <= above
    assert len(measured_s) <= len(loads)
