"""The solver returns the best split there is: it is held against brute force."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubalance.planning.allocate import allocate, smallest_on_plateau
from gpubalance.planning.fleet import Fleet
from gpubalance.planning.model import Curve, Line
from gpubalance.planning.problem import Allocation, Load, NoSplitError, Problem
from gpubalance.planning.solver import best_deadline
from gpubalance.planning.sync import Syncs
from gpubalance.settings.batch_split import BatchSplit
from tests.planning.splits import (
    all_splits,
    as_counted,
    assert_best,
    assert_split,
    brute,
    loads,
    options,
    problems,
    random_loads,
    samples_by,
    seconds,
    with_required,
)
from tests.support.cases import cases


@given(problems())
def test_no_split_is_better(problem: Problem) -> None:
    assert_best(problem)


@cases("global_batch", 1, None)
def test_a_device_is_forced_in_after_another_is_done(global_batch: int | None) -> None:
    """Its granule counts before it is done, so the deadline must not be sooner than that."""
    slow = Curve((1, 2, 3), (4.0, 4.0, 4.0))
    loads = (Load(Line(0.0, 0.25, 0.0), 7, 0.25), Load(slow, 3))
    problem = Problem(loads, global_batch=global_batch, max_global_batch=1)
    for required in (0, 1):
        assert_best(with_required(problem, required))
    pair = (Load(slow, 3), Load(Line(0.5, 0.25, 0.0), 1))
    assert_best(with_required(Problem(pair, max_global_batch=4), 0))


@given(
    st.lists(loads(6), min_size=1, max_size=3),
    st.integers(2, 8),
    st.integers(1, 140),
    st.booleans(),
)
def test_every_global_batch_is_possible_in_micro_batches(
    of: list[Load], micro: int, total: int, fixed: bool
) -> None:
    """Small limits and many micro-batches, of which the first is often a smaller one."""
    only: dict[str, Any] = {"global_batch" if fixed else "max_global_batch": total}
    sync = Syncs(otherwise_s=0.125)
    assert_best(Problem(tuple(of), sync=sync, micro_batches=micro, **only))


def given_to(
    problem: Problem, found: Allocation
) -> list[tuple[list[tuple[int, float]], int]]:
    """What each device can do, with what it got.

    Devices that do the same batches in the same times count as equal.
    """
    able = (sorted(options(problem, load).items()) for load in problem.loads)
    return sorted(zip(able, found.split.batches, strict=True))


@given(problems(), st.data())
def test_devices_have_no_order_of_their_own(
    problem: Problem, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(problem.loads))))
    turned = replace(problem, loads=tuple(problem.loads[i] for i in order))
    try:
        found = allocate(problem)
        again = allocate(turned)
    except NoSplitError:
        with pytest.raises(NoSplitError):
            allocate(turned)
        return
    assert again.step_time_s == found.step_time_s
    assert given_to(problem, found) == given_to(turned, again)


@given(problems())
def test_it_is_the_smallest_global_batch_that_is_as_fast(problem: Problem) -> None:
    problem = replace(problem, global_batch=None)
    try:
        found = allocate(problem)
    except NoSplitError:
        return
    totals, step, used = all_splits(problem)
    as_fast = (totals > 0) & (totals <= (problem.max_global_batch or math.inf))
    values = problem.objective(totals[as_fast], step[as_fast])
    as_fast[as_fast] = values >= problem.value(found) * (1 - 1e-13)
    together = as_fast & (used > 1)
    if together.any() and sum(b > 0 for b in found.split.batches) > 1:
        assert found.split.global_batch <= totals[together].min() * (1 + 1e-9)


@cases("micro", 1, 2)
@pytest.mark.parametrize("seed", range(24))
def test_no_time_of_a_device_gives_more(seed: int, micro: int) -> None:
    """A step ends with a device, and by then each can do as much as it has time for."""
    random = Random(seed)
    kinds = random_loads(random, 12 // micro, 200 // micro)
    of = tuple(random.choices(kinds, k=12 // micro))  # several of a kind
    total = random.randint(12, sum(load.limit for load in of))
    wanted: Any = {random.choice(["global_batch", "max_global_batch"]): total}
    sync_s = random.choice([0, random.uniform(0.01, 0.05)])
    problem = Problem(of, Syncs(otherwise_s=sync_s), micro_batches=micro, **wanted)
    found = allocate(problem)
    assert_split(problem, found)
    busy_s, samples = samples_by(problem)
    enough = samples >= (problem.global_batch or 1)
    rates = np.minimum(samples, total)[enough] / (busy_s[enough] + sync_s)
    assert found.throughput >= rates.max() * (1 - 1e-9)


@given(
    st.lists(loads(400, minimum=1), min_size=1, max_size=8),
    st.integers(1, 4),
    st.just(0.0) | seconds,
    st.booleans(),
)
def test_dividing_and_putting_in_order_find_the_same(
    of: list[Load], micro: int, sync_s: float, alone: bool
) -> None:
    fleet = Fleet(of, micro_batches=micro)

    def value(granules: Any, deadline_s: Any) -> Any:
        return granules / (np.maximum(deadline_s, fleet.first_s) + sync_s)

    time_s, most = best_deadline(fleet, value, alone=alone, at_once=10**6)
    for at_once in (1, 20):
        found = best_deadline(fleet, value, alone=alone, at_once=at_once)
        assert found[0] == pytest.approx(time_s, rel=1e-12)
        assert found[1] == pytest.approx(most, rel=2e-12)


@given(loads(32), st.integers(1, 3), st.sampled_from([1, 2, 8]), st.data())
def test_the_most_by_a_deadline_is_exact(
    load: Load, micro: int, multiple: int, data: st.DataObject
) -> None:
    """At deadlines that are times, before and after them, and in between."""
    whole = replace(load, limit=load.limit // multiple * multiple)
    problem = Problem((whole,), multiple=multiple, micro_batches=micro)
    counted = as_counted(problem, whole)
    fleet = Fleet([counted], multiple=multiple, micro_batches=micro)
    expected = options(problem, whole)
    units = np.array(sorted(expected)[1:]) / multiple
    times = fleet.time_s(units, np.zeros(len(units), dtype=np.intp))
    wanted = [expected[int(u * multiple)] for u in units]
    assert times == pytest.approx(wanted, rel=1e-13)
    assert (np.diff(times) >= -1e-15).all()
    for time in times[data.draw(st.integers(0, 3)) :: 7]:
        some = data.draw(st.floats(0, 2))
        at = np.array([time * (1 + 1e-13), time * (1 - 1e-13), time * 1.5, some * time])
        most = [(times <= deadline).sum() for deadline in at]
        assert fleet.maximum(at)[:, 0].tolist() == most


@given(problems(), st.sampled_from([0.01, 0.05, 0.3]), st.booleans())
def test_least_accumulation_near_the_best(
    problem: Problem, within: float, free: bool
) -> None:
    problem = replace(problem, micro_batches=4)
    if free:
        problem = replace(problem, global_batch=None)
    values = [brute(replace(problem, micro_batches=k))[0] for k in range(1, 5)]
    if not values[-1]:
        return
    allowed = 1 - within if problem.global_batch is None else 1
    enough = allowed * values[-1] * (1 - 2e-12)
    minimum = 1 + [value >= enough for value in values].index(True)
    found = allocate(replace(problem, micro_batch_tolerance=within))
    assert problem.value(found) == pytest.approx(values[minimum - 1], rel=2e-12)
    if problem.global_batch is None:
        assert max(found.split.counts) <= minimum


@cases(
    "fixed_s, sync_s, batches, binds",
    # Half loses 0.4 %, a quarter 1.2 %.
    (0.004, 0.0, (500, 500), "plateau"),
    (0.0, 0.001, (250, 250), "plateau"),  # half 0.1 %, a quarter 0.3 %, an eighth 0.7 %
    (0.006, 0.0, (1000, 1000), "memory"),  # half loses 0.6 %
)
def test_half_the_global_batch_is_taken_where_it_costs_hardly_anything(
    fixed_s: float, sync_s: float, batches: tuple[int, int], binds: str
) -> None:
    """Each device takes fixed_s + 1 ms a sample: B samples of both take that + B / 2 ms + sync."""
    pair = (Load(Line(fixed_s, 0.001, 0.0), 1000),) * 2
    problem = Problem(pair, Syncs({frozenset({0, 1}): sync_s}))
    best = allocate(problem)
    assert best.split == BatchSplit((1000, 1000))
    chosen = smallest_on_plateau(problem, best)
    assert chosen.split == BatchSplit(batches)
    assert chosen.binds == (binds, binds)
    asked = replace(problem, global_batch=2000)
    assert smallest_on_plateau(asked, best) is best


def test_no_device_is_left_out_for_a_smaller_global_batch() -> None:
    """The second one adds 0.3 %, so nearly as much is to be had with the first one alone."""
    pair = (Load(Line(0.0, 0.001, 0.0), 1000), Load(Line(0.9, 0.001, 0.0), 103))
    best = allocate(Problem(pair, multiple=1))
    assert best.split.used == (0, 1)
    chosen = smallest_on_plateau(Problem(pair, multiple=1), best)
    assert chosen.split.used == (0, 1)
