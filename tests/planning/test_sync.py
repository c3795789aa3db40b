"""Sync by the set of devices in use: what is known of a set, and the best split of any set."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubalance.planning.allocate import allocate
from gpubalance.planning.model import Line
from gpubalance.planning.problem import Load, Problem
from gpubalance.planning.sync import SyncCurve, Syncs
from tests.planning.splits import assert_best, by_set, problems, subsets, with_required
from tests.support.cases import cases


def measured(**seconds: float) -> Syncs:
    """`ab=0.1` is a sync of 0.1 s measured with the devices 0 and 1 in use."""
    return Syncs(by_set(**seconds))


def devices(names: str) -> set[int]:
    return {"abcde".index(name) for name in names}


@cases(
    "used, seconds",
    ("abcd", 0.1),
    ("abc", 0.08),  # measured
    ("ab", 0.08),  # abc and abd are the smallest around it
    ("ad", 0.09),
    ("cd", 0.1),
    ("a", 0.0),  # waits for nobody
)
def test_a_set_not_measured_takes_what_the_smallest_one_around_it_does(
    used: str, seconds: float
) -> None:
    """A set that was not measured takes what the smallest measured one around it does."""
    assert measured(abcd=0.1, abc=0.08, abd=0.09).of(devices(used)) == seconds


def test_a_set_that_no_measured_one_is_around_is_taken_for_the_longest() -> None:
    assert measured(ab=0.1, ac=0.2).of(devices("bd")) == 0.2
    assert Syncs(otherwise_s=0.3).of(devices("ab")) == 0.3
    assert Syncs().of(devices("ab")) == 0.0


SUMS_S = {"abcd": 0.30, "abc": 0.28, "ab": 0.21, "cd": 0.05}


@cases(
    "told, used, seconds",
    ("", "abc", 0.0),  # it may be nothing
    ("abc", "abc", 0.0),  # over all of them a sum may take as long
    # 20 ms of the sum are gone, so no more of sync is; each may be 3 % off
    ("abcd abc", "abc", 0.2 - 0.02 - 0.03 * (0.30 + 0.28)),
    ("abcd ab", "abc", 0.2 - 0.09 - 0.03 * (0.30 + 0.21)),  # at least as its part
    ("abcd ab", "abd", 0.2 - 0.09 - 0.03 * (0.30 + 0.21)),
    ("abcd ab", "acd", 0.0),
    ("abcd cd", "acd", 0.0),  # a sum is faster by more than there is of sync
)
def test_sync_falls_by_no_more_than_a_sum_over_fewer_devices_is_faster(
    told: str, used: str, seconds: float
) -> None:
    sums_s = {frozenset(devices(names)): SUMS_S[names] for names in told.split()}
    syncs = replace(measured(abcd=0.2), sums_s=sums_s)
    assert syncs.minimum(devices(used)) == pytest.approx(seconds)


@cases(
    "sync_s, seconds",
    (0.309, 0.97 * 0.05),  # as long as a sum may be: no less than one over them
    (0.6, 0.6 * 0.97 * 0.05 / (1.03 * 0.30)),
    (6.0, 6.0 * 0.97 * 0.05 / (1.03 * 0.30)),
)
def test_sync_in_packs_that_is_longer_than_a_sum_falls_by_as_large_a_part(
    sync_s: float, seconds: float
) -> None:
    sums_s = {frozenset(devices("abcd")): 0.30, frozenset(devices("cd")): 0.05}
    syncs = replace(measured(abcd=sync_s), sums_s=sums_s)
    assert syncs.minimum(devices("cd")) == pytest.approx(seconds)


@cases(
    "used, seconds",
    ("abc", 0.07),  # as ab at least
    ("abe", 0.07),  # in no measured set
    ("ac", 0.0),
    ("bcd", 0.1),  # no more than abcd, whatever cd took once
)
def test_a_set_takes_no_less_than_a_part_of_it(used: str, seconds: float) -> None:
    syncs = measured(abcd=0.1, ab=0.07, cd=0.12)
    assert syncs.minimum(devices(used)) == seconds


def test_a_sum_that_is_slower_over_fewer_devices_tells_of_no_more_sync() -> None:
    noisy = {frozenset(devices("abc")): 0.29, frozenset(devices("ab")): 0.32}
    syncs = replace(measured(abc=0.1), sums_s=noisy)
    assert syncs.minimum(devices("ab")) == 0.1


def test_of_some_devices_it_is_the_same_under_their_new_numbers() -> None:
    syncs = measured(abcd=0.1, bd=0.02).restricted_to([3, 1, 2])
    assert syncs.of({0, 1}) == 0.02
    assert syncs.of({0, 1, 2}) == syncs.of({1, 2}) == 0.1


# Two rounds at (busy, sync) of (100, 40) and (400, 10) ms
ROUNDS = [(0.400, 0.010), (0.100, 0.040)]


@cases(
    "busy_s, sync_s",
    (0.050, 0.040),  # as the nearest one
    (0.100, 0.040),
    (0.130, 0.020),  # 30 ms more compute hide 20 ms more
    (0.145, 0.010),
    (0.300, 0.010),
    (0.900, 0.010),
)
def test_a_longer_backward_pass_hides_more_of_the_sync(
    busy_s: float, sync_s: float
) -> None:
    everything = frozenset({0, 1})
    syncs = Syncs({everything: 0.010}, curves={everything: SyncCurve.through(ROUNDS)})
    assert syncs.curve({0, 1}).at(busy_s) == pytest.approx(sync_s)
    assert syncs.curve({0}).at(busy_s) == 0.0
    renumbered = syncs.restricted_to([1, 0])
    assert renumbered.curve({0, 1}).at(busy_s) == pytest.approx(sync_s)


def sync_by_hand(points: list[tuple[float, float]], busy_s: float) -> float:
    """The same by the rule, from one point to the next."""
    lowered = []
    for busy, sync in sorted(points):
        steps_s = [other + with_it for other, with_it in points if other >= busy]
        lowered.append((busy, min(min(steps_s) - busy, sync)))
    lowered.sort()
    if busy_s <= lowered[0][0]:
        return min(sync for busy, sync in lowered if busy == lowered[0][0])
    for (busy, sync), (later, less) in pairwise(lowered):
        if busy < busy_s <= later:
            line = sync + (less - sync) * (busy_s - busy) / (later - busy)
            hidden = max(less, sync - (busy_s - busy) * 2 / 3)
            return min(line, hidden) if sync > less else line
    return lowered[-1][1]


a_point = st.tuples(st.floats(0.01, 1.0), st.floats(0.0, 0.5))


@given(points=st.lists(a_point, min_size=1, max_size=5), busy_s=st.floats(0.0, 1.2))
def test_sync_is_as_by_hand_and_no_longer_compute_makes_a_step_shorter(
    points: list[tuple[float, float]], busy_s: float
) -> None:
    curve = SyncCurve.through(points)
    assert curve.at(busy_s) == pytest.approx(sync_by_hand(points, busy_s), abs=1e-9)
    several_s = np.linspace(0.0, 1.2, 200)
    steps_s = several_s + curve.at(several_s)
    assert (np.diff(steps_s) > -1e-12).all()


@st.composite
def with_sets(draw: st.DrawFn) -> Problem:
    """A problem in which some sets, or all, have a sync of their own.

    A part of a set may also need more than the whole.
    """
    problem = draw(problems())
    several = [frozenset(one) for one in subsets(len(problem.loads)) if len(one) > 1]
    if not several:
        return problem
    seconds = st.integers(0, 16).map(lambda n: n / 64)
    measured_s = draw(st.dictionaries(st.sampled_from(several), seconds))
    curves = {}
    point = st.tuples(seconds.map(lambda s: 4 * s), seconds)
    for devices in measured_s:
        points = draw(st.lists(point, max_size=3))
        if points:
            curves[devices] = SyncCurve.through(points)
    return replace(problem, sync=Syncs(measured_s, curves=curves))


@given(problem=with_sets(), data=st.data())
def test_none_with_some_forced_in_is_better(
    problem: Problem, data: st.DataObject
) -> None:
    forced = data.draw(st.sets(st.integers(0, len(problem.loads) - 1)))
    assert_best(with_required(problem, *forced))


def test_in_a_thousand_devices_the_measured_set_is_found() -> None:
    lines = [Line(0.02, 0.001 + 1e-6 * number, 0.0) for number in range(1000)]
    loads = tuple(Load(line, 100) for line in lines)
    without = frozenset(range(990))
    syncs = Syncs({frozenset(range(1000)): 0.1, without: 0.05})
    assert allocate(Problem(loads, syncs)).split.used == tuple(sorted(without))
