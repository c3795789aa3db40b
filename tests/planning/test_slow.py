"""Rare slow steps are told as such, and not as sync."""

from __future__ import annotations

import numpy as np
import pytest

from gpubalance.planning.parts import slow_steps, slow_time
from tests.bench.sync import MACHINES, Machine


@pytest.mark.parametrize(("windows", "timings", "least"), [(2, 5, 0.9), (3, 18, 0.95)])
@pytest.mark.parametrize("machine", [one for one in MACHINES if one.factor == 3 or not one.slow], ids=str)
def test_sync_is_what_it_is_beside_rare_slow_steps(machine: Machine, windows: int, timings: int, least: float) -> None:
    """Within 0.03 of 0.1, in nine of ten short runs and 19 of 20 long ones; with slow steps in it up to 0.5."""
    right, _, _ = machine.right(60, windows, timings)
    assert right.part >= least


def test_the_parts_of_a_step_add_up_beside_slow_steps() -> None:
    for seed in range(20):
        one = Machine(0.02, 0.1).measured(seed)
        replica = one.replicas[0]
        parts = replica.compute_s + replica.wait_s + one.sync_s + one.slow_s - one.excess_s
        assert parts == pytest.approx(one.step_time_s.median)
        assert one.slow_s > 0


def test_without_a_slow_step_nothing_is_taken_for_one() -> None:
    steady = np.random.default_rng(1).normal(1, 0.1, 300).tolist()
    assert slow_steps(steady) == 0
    assert slow_time([1.0, 1.01, 1.02], 10, steady) == 0
    assert slow_time([1.2, 1.2, 1.2], 10, steady) == 0  # longer all the same: what is between steps


def test_slow_steps_that_only_the_timings_hold_are_found() -> None:
    """Of ten steps each, two timings hold a slow one, of which the single steps know nothing."""
    assert slow_time([1.0, 1.2, 1.2], 10, [1.0, 1.0, 1.0]) == pytest.approx(0.2)
