"""A simulated device behaves as its profile says, in the real step.

The times that are compared are of one run.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from gpubalance.engine import pace
from gpubalance.engine.pace import (
    QUEUED_WITHIN_S,
    ComputeTimes,
    PacedClock,
    clocks,
    noise_seed,
)
from gpubalance.settings.device import DeviceProfile, JointProfile
from tests.engine.steps import Steps
from tests.engine.test_exact import adam, dense_model
from tests.support.late import tf
from tests.support.told import refused


def data(count: int) -> tuple[Any, Any]:
    return np.zeros((count, 6), np.float32), (np.zeros(count, np.int64),)


def paced(alpha_s: float, beta_s: float = 0.0, **options: Any) -> DeviceProfile:
    return DeviceProfile(name="paced", alpha_s=alpha_s, beta_s=beta_s, **options)


def used(profile: DeviceProfile) -> PacedClock:
    """The clock of a device alone that has begun a step before."""
    (clock,) = clocks([profile], JointProfile(), seed=0)
    assert isinstance(clock, PacedClock)
    clock.begin(1, 1)
    return clock


def stamps_of(
    steps: Steps, batches: tuple[int, ...], parts: Any = None, *, discard: int = 2
) -> Any:
    for _ in range(discard):
        steps.step(*data(sum(batches)), batches, parts, stamped=True)
    return steps.step(*data(sum(batches)), batches, parts, stamped=True)[1]


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


def test_a_queued_step_counts_from_the_end_of_the_one_before() -> None:
    """The host's own time between two steps is hidden behind the earlier step, as on a GPU.

    A pause is not hidden.
    """
    clock = used(paced(0.001))
    # This process may have to wait for that long, but not each time
    for _ in range(20):
        clock.free_s = time.perf_counter() - QUEUED_WITHIN_S / 3
        if clock.begin(1, 1) == clock.free_s:
            break
    else:
        raise AssertionError("no step counts from the end of the one before")
    clock.free_s = time.perf_counter() - QUEUED_WITHIN_S * 2
    assert clock.begin(1, 1) > clock.free_s + QUEUED_WITHIN_S


def test_of_a_late_host_what_is_beyond_half_of_the_steps_compute_counts() -> None:
    clock = used(paced(2.0))
    clock.free_s = time.perf_counter() - 0.3
    assert clock.begin(1, 1) == clock.free_s
    clock.free_s = time.perf_counter() - 5.0
    assert clock.begin(1, 1) >= clock.free_s + 4.0


def test_a_late_host_makes_no_compute_longer() -> None:
    """Real compute as long as the profile's, after a host that was late by less than half of it."""
    # On a busy machine one sleep may take longer, but not every one.
    for _ in range(5):
        clock = used(paced(0.5))
        clock.free_s = time.perf_counter() - 0.2
        began_s = clock.begin(1, 1)
        time.sleep(0.4)
        took_s = clock.computed() - began_s
        if took_s == pytest.approx(0.5, abs=0.05):
            break
    else:
        raise AssertionError(f"each step took longer than its profile: {took_s} s")
    clock.begin(1, 1)
    time.sleep(0.6)
    clock.computed()
    clock.summed()
    clock.finished()
    assert clock.late_steps == 1


def test_what_is_woken_late_has_ended_on_time() -> None:
    clock = used(paced(0.01))
    steps = ((clock.begin(1, 1), clock.computed()) for _ in range(20))
    # On a busy machine one step may come too late to sleep, but not every step.
    assert any(ended_s == began_s + 0.01 for began_s, ended_s in steps)


def test_a_step_is_late_once_however_often_it_is() -> None:
    steps = Steps(dense_model, adam, [paced(0.0)])
    for _ in range(4):
        steps.step(*data(50), (50,))
    clock: Any = steps.clocks[0]
    assert 0 < clock.late_steps <= clock.steps == 4


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
    joint = JointProfile(extra_memory=50, sync_s=10.0)
    steps = Steps(dense_model, adam, [limited], joint)
    steps.step(*data(90), (90,))
    with pytest.raises(tf.errors.ResourceExhaustedError):
        steps.step(*data(91), (91,))


def test_noise_is_the_devices_own_and_repeatable() -> None:
    def drawn(seed: int, replica: int) -> list[float]:
        times = ComputeTimes(paced(1.0, noise=0.1), seed=noise_seed(seed, replica))
        return [times.next_s(1) for _ in range(50)]

    assert drawn(1, 0) == drawn(1, 0)
    assert drawn(1, 0) != drawn(1, 1)
    assert np.std(drawn(1, 0)) == pytest.approx(0.1, rel=0.3)


def test_drift_follows_its_points() -> None:
    profile = paced(1.0, drift=[[20.0, 1.4], [40.0, 1.0]])
    factors = [profile.drift_at(t) for t in (0, 19.9, 20, 39.9, 41)]
    assert factors == [1.0, 1.0, 1.4, 1.4, 1.0]


def test_contention_lengthens_compute_while_other_devices_compute() -> None:
    """In a joint run it always does.

    A device alone is slower only while its worker is told that others compute at once.
    """
    profile = paced(0.05)
    joint = JointProfile(contention=10)
    both = Steps(dense_model, adam, [profile] * 2, joint)
    stamps = stamps_of(both, (5, 5), discard=1)
    assert (stamps[:, 1] - stamps[:, 0]).min() >= 0.5 - 1e-9
    (clock,) = clocks([profile], joint, seed=0)
    assert isinstance(clock, PacedClock)
    took_s = []
    for clock.others_compute in (False, True):
        began_s = clock.begin(5, 5)
        took_s.append(clock.computed() - began_s)
        clock.summed()
        clock.finished()
    assert took_s[0] < 0.5 - 1e-9 <= took_s[1] + 1e-9


class CountedTime:
    """A clock that only counts, in place of Python's."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def perf_counter(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now_s += seconds


def test_a_step_of_two_devices_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 0.2 and 0.3 s alone; together 1.5 times as long, with half of that by XLA for the first."""
    counted = CountedTime()
    monkeypatch.setattr(pace, "time", counted)
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
    alone.begin(10, 10)
    assert alone.computed() - 0.2 == pytest.approx(alone.summed() - 0.2)
