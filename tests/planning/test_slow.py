"""Rare slow steps are told as such, and not as sync."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from gpubalance.jobs.measure.timings import Timings
from gpubalance.planning.slow import slow_steps, slow_time
from gpubalance.results.run import Measurement
from gpubalance.results.timing import Timing
from gpubalance.settings.shares import Shares

SYNC_S = 0.1


def measured(slow: float, size: int, seed: int) -> Measurement:
    """54 timings of `size` steps, and stamped ones for a tenth of the time. A step computes a second, with 2 % noise.

    A part `slow` of all takes three times as long.
    """
    source = np.random.default_rng(seed)

    def computes(count: int) -> np.ndarray:
        return (1 + 0.02 * source.standard_normal(count)) * np.where(source.random(count) < slow, 3, 1)

    stamped = [
        Timing(steps=1, seconds=c + SYNC_S, input_wait_s=0.0, compute_s=(c, c), update_s=(0.0, 0.0), step_s=c + SYNC_S)
        for c in computes(6 * size).tolist()
    ]
    timings = [
        Timing(steps=size, seconds=float(computes(size).sum()) + size * SYNC_S, input_wait_s=0.0) for _ in range(54)
    ]
    return Timings(Shares((8, 8)), timings=timings, stamped=stamped).measurement()


@pytest.mark.parametrize(
    ("slow", "size", "most"), [(0.0, 13, 0.105), (0.03, 13, 0.115), (0.1, 13, 0.13), (0.03, 50, 0.115), (0.1, 50, 0.16)]
)
def test_sync_is_what_it_is_beside_rare_slow_steps(slow: float, size: int, most: float) -> None:
    """Of 0.1 s. It would be 0.11, 0.26, 0.15 and 0.29 s, with slow steps in it."""
    found = [measured(slow, size, seed) for seed in range(30)]
    assert 0.08 <= statistics.mean(one.sync_s for one in found) <= most
    for one in found:
        replica = one.replicas[0]
        parts = replica.compute_s + replica.wait_s + one.sync_s + one.slow_s - one.excess_s
        assert parts == pytest.approx(one.step_time_s.median)


def test_without_a_slow_step_nothing_is_taken_for_one() -> None:
    steady = np.random.default_rng(1).normal(1, 0.1, 300).tolist()
    assert slow_steps(steady) == 0
    assert slow_time([1.0, 1.1, 1.2], 10, steady) == 0
    assert slow_time([1.0, 1.1, 1.2], 1, [1.0, 1.0, 3.0]) == 0
