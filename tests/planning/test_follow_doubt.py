"""How surely another split is faster, where each device's time is known but for a part of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubalance.planning.follow import Rebalancer, SplitChange, _min_gain
from gpubalance.planning.parts import StepTimes
from gpubalance.planning.problem import Allocation
from gpubalance.settings.batch_split import BatchSplit

SPLIT = BatchSplit((100, 100))


def now_and_best(
    now_s: Sequence[float], best_s: Sequence[float], update_s: float, sync_s: float
) -> tuple[StepTimes, Allocation]:
    """Devices' compute in this split and in another one, and what both have beside it."""
    updates_s = (update_s,) * len(now_s)
    now = StepTimes(tuple(now_s), updates_s, SPLIT, sync_s)
    return now, Allocation(SPLIT, tuple(best_s), max(best_s) + update_s, ())


def least_by_corners(
    now_s: Sequence[float], best_s: Sequence[float], unsure: Sequence[float]
) -> float:
    """The least gain if each device takes longer or shorter by its part, each by itself."""
    gains = []
    for signs in itertools.product((-1, 1), repeat=len(now_s)):
        factors = np.exp(np.multiply(signs, unsure))
        gains.append(float(max(now_s * factors) / max(best_s * factors)))
    return min(gains)


times = st.floats(0.01, 1.0)
devices = st.lists(st.tuples(times, times, st.floats(0.0, 0.5)), min_size=1, max_size=4)


@given(devices)
def test_no_times_in_doubt_gain_less(
    of_devices: list[tuple[float, float, float]],
) -> None:
    now_s, best_s, unsure = zip(*of_devices, strict=True)
    minimum = _min_gain(*now_and_best(now_s, best_s, 0.0, 0.0), unsure)
    assert minimum == pytest.approx(least_by_corners(now_s, best_s, unsure))


def test_what_a_step_has_beside_compute_is_known_and_makes_a_gain_less() -> None:
    """The second device may be 10 % faster than it seems, and the first, alone, 10 % slower."""
    now, best = now_and_best((0.2, 0.3), (0.25, 0.25), 0.05, 0.1)
    less, more = math.exp(-0.1), math.exp(0.1)
    slow_first = (0.3 * less + 0.15) / (0.25 * more + 0.15)
    slow_second = (0.3 * more + 0.15) / (0.25 * more + 0.15)
    assert slow_first < slow_second
    assert _min_gain(now, best, (0.1, 0.1)) == pytest.approx(slow_first)
    # Whatever is known exactly does not lower it.
    assert _min_gain(now, best, (0.0, 0.0)) == pytest.approx(0.45 / 0.40)


def first_change(slow_s: float, noise: float, steps: int) -> SplitChange | None:
    """What a follower does with a device that takes `slow_s`, and one that takes 0.2 s.

    By turns each step is `noise` longer and shorter on the first device.
    """
    follower = Rebalancer([None, None])
    for number in range(steps):
        factor = 1 + noise * (1 - number % 3)
        step = StepTimes((slow_s * factor, 0.2), (0.0, 0.0), SPLIT, 0.0)
        change = follower.note(number, step)
        if change is not None:
            return change
    return None


def test_a_gain_within_the_noise_changes_nothing_and_without_it_it_does() -> None:
    """97/103 takes 2.9 % less, which 17 steps show if they are alike, and 4 % of noise hides."""
    change = first_change(0.212, 0.0, steps=17)
    assert change is not None
    assert change.after.batches == (97, 103)
    assert change.gain == pytest.approx(0.212 / 0.206)
    assert first_change(0.212, 0.04, steps=17) is None


def test_a_doubt_is_forgotten_after_257_steps() -> None:
    """100 steps were others than all since. Of a device with one step nothing is known."""
    follower = Rebalancer([None, None])
    odd, usual = (
        StepTimes((first_s, 0.2), (0.0, 0.0), SPLIT, 0.0) for first_s in (0.3, 0.2)
    )
    for since, is_sure in ((157, False), (257, True)):
        steps = [*[odd] * 100, *[usual] * since]
        unsure = follower._uncertainty(steps[:-5], steps[-5:])
        assert unsure is not None
        assert [one == 0.0 for one in unsure] == [is_sure] * 2
    assert follower._uncertainty([], [usual]) is None
