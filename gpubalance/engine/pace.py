"""Holds a simulated device to its profile, from inside the step.

A simulated device is a TensorFlow CPU device that runs the real replica step. Three calls in its graph make it
behave like its profile: `begin` refuses a batch past its memory, `computed` sleeps until alpha + beta · batch is over,
`finished` until the joint run's sync is. Of k micro-batches the memory is one's and the time is k times one's, so alpha
is paid k times. A device without a profile has a clock that only reads the time.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence

from gpubalance.settings.device import DeviceProfile, JointProfile

# A GPU starts a step the moment the one before ends, as the host has queued it meanwhile. A simulated device counts
# its step from that moment too, when the host comes within this time, so that a step takes what its profile says.
QUEUED_WITHIN_S = 0.015
# A step whose real compute ended this much (of its paced time) too late does not follow the profile.
LATE_BY = 0.01


class Clock:
    """Reads the time at three points of a replica's step. Seconds on the monotonic clock."""

    def begin(self, batch: int, micro_batch: int | None = None) -> float:
        """The replica's inputs are there, and its compute begins."""
        del batch, micro_batch
        return time.perf_counter()

    def computed(self, batch: int, micro_batch: int | None = None) -> float:
        """The replica's own gradients are there."""
        del batch, micro_batch
        return time.perf_counter()

    def finished(self) -> float:
        """The replica's weights are updated."""
        return time.perf_counter()


class Rendezvous:
    """What the paced replicas of one step share: when the last of them ended its compute, and the sync after it."""

    def __init__(self, replicas: int, joint: JointProfile) -> None:
        self.extra_memory = joint.extra_memory if replicas > 1 else 0
        self.sync_s = joint.sync_s if replicas > 1 else 0.0
        self._lock = threading.Lock()
        self._last_s = 0.0

    def arrive(self, computed_s: float) -> None:
        """A replica's compute ended. Steps follow each other, so the latest of a step is the latest of all."""
        with self._lock:
            self._last_s = max(self._last_s, computed_s)

    def free_at(self) -> float:
        """When the step is over for every replica. Only called after all of them arrived."""
        with self._lock:
            return self._last_s + self.sync_s


class ComputeTimes:
    """How long a simulated device computes in one step after the other: its profile's time, drift and noise."""

    def __init__(self, profile: DeviceProfile, *, seed: int) -> None:
        self._profile = profile
        self._random = random.Random(seed)  # noqa: S311  (noise, not a secret)

    def next_s(self, batch: int, micro_batches: int = 1, *, elapsed_s: float = 0.0) -> float:
        """Seconds of the next step, `elapsed_s` after the first began. Each step draws its own noise."""
        profile = self._profile
        factor = profile.drift_at(elapsed_s)
        if profile.noise:
            factor *= max(0.0, self._random.gauss(1.0, profile.noise))
        return (micro_batches * profile.alpha_s + profile.beta_s * batch) * factor


class PacedClock(Clock):
    """A simulated device's clock: it sleeps until the profile's time, and refuses what its memory does not hold."""

    def __init__(self, replica: int, profile: DeviceProfile, rendezvous: Rendezvous, *, seed: int) -> None:
        self._replica = replica
        self._profile = profile
        self._rendezvous = rendezvous
        self._times = ComputeTimes(profile, seed=seed)
        self._first_s: float | None = None
        self._began_s = 0.0
        self._free_s = 0.0
        self._late = False
        self.steps = 0
        self.late_steps = 0

    def begin(self, batch: int, micro_batch: int | None = None) -> float:
        """Raises MemoryError for samples past the profile's memory; else when the step's compute counts from."""
        profile = self._profile
        at_a_time = int(batch if micro_batch is None else micro_batch)
        needed = profile.memory_at(at_a_time, self._rendezvous.extra_memory)
        if profile.memory is not None and needed > profile.memory:
            # TensorFlow turns a MemoryError in the graph into its own ResourceExhaustedError.
            raise MemoryError(f"OOM on replica {self._replica}: batch {at_a_time} needs {needed} of {profile.memory} B")
        self._late = False
        now = time.perf_counter()
        self._began_s = self._free_s if now - self._free_s < QUEUED_WITHIN_S else now
        if self._first_s is None:
            self._first_s = self._began_s
        return self._began_s

    def computed(self, batch: int, micro_batch: int | None = None) -> float:
        """Sleeps until the profile's compute time is over."""
        count = 1 if micro_batch is None else -(-int(batch) // int(micro_batch))  # a first one may be smaller
        target = self._began_s + self._compute_s(int(batch), count)
        now = time.perf_counter()
        self.steps += 1
        if now < target:
            time.sleep(target - now)
        else:
            self._note_late(now - target > LATE_BY * (target - self._began_s))
        ended = max(time.perf_counter(), target)
        self._rendezvous.arrive(ended)
        return ended

    def finished(self) -> float:
        """Sleeps until the joint run's sync is over."""
        target = self._rendezvous.free_at()
        now = time.perf_counter()
        if now < target:
            time.sleep(target - now)
        else:
            self._note_late(now - target > QUEUED_WITHIN_S)
        self._free_s = target if now - target < QUEUED_WITHIN_S else now
        return max(time.perf_counter(), target)

    def _note_late(self, late: bool) -> None:
        """A step counts once, however often it is late."""
        self.late_steps += late and not self._late
        self._late = self._late or late

    def _compute_s(self, batch: int, micro_batches: int = 1) -> float:
        assert self._first_s is not None  # noqa: S101  (begin ran before)
        return self._times.next_s(batch, micro_batches, elapsed_s=self._began_s - self._first_s)


def noise_seed(seed: int, replica: int) -> int:
    """Of one replica's noise: each has its own, and the same in every run with this seed."""
    return seed * 1009 + replica


def clocks(profiles: Sequence[DeviceProfile | None], joint: JointProfile, *, seed: int) -> list[Clock]:
    """A clock a replica, in order."""
    rendezvous = Rendezvous(len(profiles), joint)
    return [
        PacedClock(index, profile, rendezvous, seed=noise_seed(seed, index)) if profile else Clock()
        for index, profile in enumerate(profiles)
    ]
