"""A simulated device behaves as its profile says, in the real step.

The times that are compared are of one run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpubalance.engine import pace
from gpubalance.engine.pace import ComputeTimes, PacedClock, clocks, noise_seed
from gpubalance.settings.device import DeviceProfile, JointProfile
from tests.engine.steps import Steps
from tests.engine.test_exact import adam, dense_model
from tests.support.cases import cases
from tests.support.late import tf
from tests.support.told import refused


def data(count: int) -> tuple[Any, Any]:
    return np.zeros((count, 6), np.float32), (np.zeros(count, np.int64),)


def paced(alpha_s: float, beta_s: float = 0.0, **options: Any) -> DeviceProfile:
    return DeviceProfile(name="paced", alpha_s=alpha_s, beta_s=beta_s, **options)


def stamps_of(steps: Steps, batches: tuple[int, ...], parts: Any = None) -> Any:
    """Those of the third step."""
    for _ in range(3):
        _, stamps = steps.step(*data(sum(batches)), batches, parts, stamped=True)
    return stamps


def test_replicas_overlap() -> None:
    """All begin before any ends.

    A sleeping py_function in TensorFlow's default order takes turns instead.
    """
    stamps = stamps_of(Steps(dense_model, adam, [paced(0.4)] * 4), (3,) * 4)
    assert stamps[:, 0].max() < stamps[:, 1].min()


def test_no_part_is_shorter_than_in_the_profile() -> None:
    """No part is shorter than in the profile and the update is each device's own.

    A device alone has an update too, and each micro-batch has the fixed cost.

    The longest sync of the devices counts.
    """
    first = paced(0.01, 0.004, update_s=0.04, sync_s=0.03)
    profiles = [first, paced(0.02, 0.001, update_s=0.2, sync_s=0.02)]
    joint = Steps(dense_model, adam, profiles, JointProfile(sync_s=0.01))
    alone = stamps_of(Steps(dense_model, adam, profiles[:1]), (5,))
    for parts, min_s in ((None, (0.074, 0.06)), ((8, 40), (0.084, 0.06))):
        stamps = stamps_of(joint, (16, 40), parts)
        assert (stamps[:, 1] - stamps[:, 0] >= np.array(min_s) - 1e-9).all()
        assert stamps[:, 2].min() >= stamps[:, 1].max() + 0.03 - 1e-9
        updates = [*(stamps[:, 3] - stamps[:, 2]), alone[0, 3] - alone[0, 2]]
        assert (updates >= np.array([0.04, 0.2, 0.04]) - 1e-9).all()
        assert stamps[0, 3] < stamps[1, 3]


def test_a_step_past_a_devices_memory_raises_tensorflows_own_error() -> None:
    """A step past a device's memory raises TensorFlow's own error and begins on none.

    A sum that TensorFlow cancels within a step may cancel the next step's too, which fits.
    """
    from gpubalance.engine.failures import failing_replica

    lacks = 1
    profiles = [paced(0.001), paced(0.001)]
    profiles[lacks] = paced(0.001, memory=1000, base_memory=100, memory_per_sample=10)
    steps = Steps(dense_model, adam, profiles, JointProfile(extra_memory=50))
    with pytest.raises(tf.errors.ResourceExhaustedError) as caught:
        steps.step(*data(172), (86, 86))
    assert failing_replica(str(caught.value), steps.names) == lacks
    paced_clocks = [clock for clock in steps.clocks if isinstance(clock, PacedClock)]
    # The beginning of the first step sets these times.
    assert [clock.free_s for clock in paced_clocks] == [0.0, 0.0]
    steps.step(*data(170), (85, 85))
    steps.step(*data(340), (170, 170), (85, 85))
    with refused(f"replica {lacks}: batch 86", tf.errors.ResourceExhaustedError):
        steps.step(*data(340), (170, 170), (86, 86))
    assert all(clock.free_s for clock in paced_clocks)


def test_alone_a_device_has_the_memory_that_a_joint_run_takes() -> None:
    limited = paced(0.001, memory=1000, base_memory=100, memory_per_sample=10)
    (alone,) = clocks([limited], JointProfile(extra_memory=50), seed=0)
    assert [bool(alone.lacks(size)) for size in (90, 91)] == [False, True]


def test_noise_is_the_devices_own_and_repeatable() -> None:
    def drawn(seed: int, replica: int) -> list[float]:
        times = ComputeTimes(paced(1.0, noise=0.1), seed=noise_seed(seed, replica))
        return [times.next_s(1) for _ in range(50)]

    assert drawn(1, 0) == drawn(1, 0)
    assert drawn(1, 0) != drawn(1, 1)
    assert np.std(drawn(1, 0)) == pytest.approx(0.1, rel=0.3)


class CountedTime:
    """A clock that only counts, in place of Python's, and wakes whoever sleeps 1 ms late."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def perf_counter(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now_s += seconds + 0.001


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> CountedTime:
    counted = CountedTime()
    monkeypatch.setattr(pace, "time", counted)
    return counted


@cases(
    "compute_s, late_s, counts_s", (0.001, 0.014, 0), (0.001, 0.03, 0.0295), (2, 5, 4)
)
def test_what_a_late_host_adds_to_a_step(
    compute_s: float, late_s: float, counts_s: float, counted: CountedTime
) -> None:
    """A host that comes soon has queued the step; half of the compute before hides a later one."""
    (clock,) = clocks([paced(compute_s)], JointProfile(), seed=0)
    assert isinstance(clock, PacedClock)
    clock.begin(1, 1)
    clock.free_s = counted.now_s - late_s
    assert clock.begin(1, 1) == pytest.approx(clock.free_s + counts_s)


def test_a_step_of_two_devices_by_hand(counted: CountedTime) -> None:
    """Of 0.2 and 0.3 s alone; together 1.5 times as long, with half of that by XLA for the first.

    A device alone is slower only while its worker is told that others compute at once.
    """
    first = paced(0.1, 0.01, update_s=0.03, xla_factor=0.5)
    second = paced(0.1, 0.02, update_s=0.01, sync_s=0.04)
    joint = JointProfile(contention=1.5, sync_s=0.02)
    pair: Any = clocks([first, second], joint, seed=0)
    assert not any(clock.counts_computed_steps for clock in pair)
    began = [clock.begin(10, 10, xla=True) for clock in pair]
    assert began == [100.0, 100.0]
    assert pair[0].computed() == pytest.approx(100.15)
    assert pair[1].computed() == pytest.approx(100.45)
    assert [clock.summed() for clock in pair] == pytest.approx([100.49] * 2)
    ends = [clock.finished() for clock in pair]
    assert ends == pytest.approx([100.52, 100.50])
    # The host comes 10 ms late for the next one, which is queued.
    counted.now_s = 100.53
    assert pair[0].begin(10, 10) == ends[0]
    # Compute that takes longer than by the profile counts in full.
    counted.now_s += 0.4
    assert pair[0].computed() == pytest.approx(ends[0] + 0.4)
    # Half of the longest compute, 0.9 s, a host may be late.
    counted.now_s = ends[0] + 1.0
    assert pair[1].begin(20, 10) == pytest.approx(ends[1] + 1.0 - 0.45)
    counted.now_s += 5.0
    assert pair[1].computed() == pytest.approx(ends[1] + 0.55 + 5.0)
    for clock in pair:
        clock.summed()
        clock.finished()
    told = [(clock.steps, clock.late_steps, clock.computed_steps) for clock in pair]
    assert told == [(2, 1, 2), (2, 1, 2)]
    assert [clock.lacks(10**9) for clock in pair] == ["", ""]
    alone: Any = clocks([first], joint, seed=0)[0]
    for alone.others_compute, compute_s in ((False, 0.2), (True, 0.3)):
        ends_s = alone.begin(10, 10) + compute_s
        assert [alone.computed(), alone.summed()] == pytest.approx([ends_s] * 2)
        alone.finished()
