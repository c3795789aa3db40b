"""What a training's steps take by the clock, beside their stamps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpubalance.settings.batch_split import BatchSplit

if TYPE_CHECKING:  # they load TensorFlow
    from gpubalance.training.monitor import StampedStep

SPLIT = BatchSplit((3, 1))


def step(summed_s: float, split: BatchSplit = SPLIT) -> StampedStep:
    """A step that computes for 0.3 and 0.2 s, and updates for 0.1 s; its sync takes 0.05 s."""
    from gpubalance.training.monitor import StampedStep

    devices = [(0.0, 0.3, 0.35, 0.45), (0.0, 0.2, 0.35, 0.45)]
    return StampedStep(np.array(devices) - 0.35 + summed_s, split)


def test_a_step_takes_what_the_clock_says_between_stamped_steps() -> None:
    """A step takes what the clock says from one stamped step to the next.

    But not over the end of an epoch, in which the host does other things, nor over a change.
    """
    from gpubalance.training.monitor import StepClock

    clock = StepClock()
    assert clock.times_of(10, step(100.0)).step_time_s == pytest.approx(0.45)
    # Ten steps in 6 s
    assert clock.times_of(20, step(106.0)).step_time_s == pytest.approx(0.6)
    clock.pause()
    assert clock.times_of(30, step(130.0)).step_time_s == pytest.approx(0.6)
    assert clock.times_of(40, step(134.5)).step_time_s == pytest.approx(0.45)
    other = BatchSplit((2, 2))
    assert clock.times_of(50, step(150.0, other)).step_time_s == pytest.approx(0.525)
    assert clock.times_of(60, step(158.0, other)).step_time_s == pytest.approx(0.8)
    # Slower than those between
    assert clock.times_of(70, step(159.0, other)).step_time_s == pytest.approx(0.45)
    clock.begin()
    assert clock.times_of(80, step(900.0, other)).step_time_s == pytest.approx(0.45)
