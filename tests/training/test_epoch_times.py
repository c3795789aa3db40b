"""An epoch's medians, by hand: of the last split of the largest batch, and of devices that wait."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpubalance.planning.noise import Norms
from gpubalance.settings.batch_split import BatchSplit
from tests.support.late import epoch_times

SPLIT = BatchSplit((6, 2))
LATER = BatchSplit((4, 4))
LAST = BatchSplit((3, 1))


def step(
    computes_s: Any, sync_s: float, update_s: float = 0.1, split: BatchSplit = SPLIT
) -> Any:
    """Both begin at 5 s; their sum is there `sync_s` after the slower one's gradients."""
    summed_s = 5.0 + max(computes_s) + sync_s
    rows = [(5.0, 5.0 + own_s, summed_s, summed_s + update_s) for own_s in computes_s]
    return epoch_times.StampedStep(np.array(rows), split)


def test_an_epoch_has_the_medians_of_its_last_whole_split() -> None:
    steps = [
        step((9.0, 9.0), 9.0),
        step((0.3, 0.5), 0.05, split=LATER),
        step((0.1, 0.4), 0.01, 0.2, split=LATER),
        step((0.2, 0.9), 0.03, 0.3, split=LATER),
        step((0.01, 0.01), 0.0, split=LAST),
    ]
    times = epoch_times.EpochTimes.of(7, steps)
    assert (times.epoch, times.batches) == (7, (4, 4))
    assert times.compute_s == pytest.approx((0.2, 0.5))
    assert times.update_s == pytest.approx((0.2, 0.2))
    assert times.sync_s == pytest.approx(0.03)
    assert times.busy_s == pytest.approx((0.4, 0.7))
    assert times.wait_s == pytest.approx((0.3, 0.0))
    assert times.imbalance == pytest.approx(0.7 / 0.55)
    assert times.noise_scale is None


def test_norms_are_those_of_steps_that_have_them() -> None:
    with_norms = np.hstack([step((0.1, 0.1), 0.0).stamps, [[2.0, 7.0], [3.0, 7.0]]])
    accumulating = BatchSplit((6, 2), (2, 2))
    steps = [step((0.1, 0.1), 0.0), epoch_times.StampedStep(with_norms, accumulating)]
    assert epoch_times.norms_of(steps) == [Norms(8, 4, 5.0, 7.0)]
