"""Sync over several hosts: what is fitted explains what was measured, and a split is of as many hosts as pay."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubalance.planning.allocate import allocate, gain
from gpubalance.planning.model import Line
from gpubalance.planning.problem import Load, Problem
from gpubalance.planning.sync import sync_over_hosts, with_sync

seconds = st.floats(0.001, 1.0)


@given(within=seconds, latency=seconds, link=seconds, seen=st.sets(st.integers(1, 9), min_size=3))
def test_three_measurements_tell_all_others(within: float, latency: float, link: float, seen: set[int]) -> None:
    true = [within + latency * 2 * (h - 1) + link * 2 * (h - 1) / h for h in range(1, 10)]
    assert sync_over_hosts({h: true[h - 1] for h in seen}, 9) == pytest.approx(true)


@given(at=st.integers(2, 9), measured=seconds)
def test_one_measurement_is_the_links(at: int, measured: float) -> None:
    over = sync_over_hosts({at: measured}, 9)
    assert over[at - 1] == measured
    assert over[0] == 0
    assert list(over) == sorted(over)
    assert over[8] < 2 * over[1] + 1e-9  # a ring moves less than twice the gradients, however many there are


def test_what_is_not_measured_is_taken_for_nothing() -> None:
    assert sync_over_hosts({}, 3) == (0, 0, 0)
    assert sync_over_hosts({1: 0.01}, 1) == (0.01,)


devices = st.builds(
    Load,
    st.builds(Line, st.floats(0.005, 0.05), st.floats(0.001, 0.01), st.just(0.0)),
    st.integers(1, 6),
    st.floats(0, 0.01),
    st.integers(0, 1),
)


@given(loads=st.lists(devices, min_size=2, max_size=4), sync_s=seconds, part=st.floats(0, 1))
def test_the_best_of_two_hosts_is_that_of_all_splits(loads: list[Load], sync_s: float, part: float) -> None:
    loads[0], loads[1] = replace(loads[0], host=0), replace(loads[1], host=1)
    problem = with_sync(Problem(tuple(loads)), {1: part * sync_s, 2: sync_s})

    def value(batches: tuple[int, ...]) -> float:
        used = [(load, batch) for load, batch in zip(loads, batches, strict=True) if batch]
        slowest = max(load.model.step_time_s(batch) + load.update_s for load, batch in used)
        over = len({load.host for load, _ in used})
        return sum(batches) / (slowest + (0.0 if len(used) == 1 else problem.sync_s if over == 2 else part * sync_s))

    every = (batches for batches in itertools.product(*(range(load.limit + 1) for load in loads)) if any(batches))
    found = allocate(problem)
    assert problem.value(found) == pytest.approx(max(map(value, every)))
    assert value(found.split.batches) == pytest.approx(problem.value(found))


def test_a_host_behind_a_slow_network_is_left_out_and_told_why() -> None:
    fast, slow = Load(Line(0.02, 0.001, 0.0), 100), Load(Line(0.02, 0.002, 0.0), 100, host=1)
    problem = with_sync(Problem((fast, fast, slow)), {1: 0.001, 2: 0.5})
    found = allocate(problem)
    assert found.split.batches == (100, 100, 0)
    assert found.binds[2] == "sync"
    assert (gain(problem, 2) or 0.0) < 0
    assert allocate(with_sync(problem, {1: 0.001, 2: 0.002})).split.used == (0, 1, 2)
