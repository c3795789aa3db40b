"""Makes simulated devices follow their profiles: in a replica's step, and in a pipeline.

A simulated device is a TensorFlow CPU device that runs the real replica step. Calls in its graph
make it behave like its profile: `computed` sleeps until its compute is over, `summed` until
the joint run's sync is, `finished` until the device's own update is. A step with a batch
beyond its memory, by `lacks`, must not begin. k micro-batches take the memory of one and k times
its time, so alpha is paid k times. A device without a profile has a clock that only reads the time.

A pipeline follows the simulated schedule of `PipelinePace`. The real step runs meanwhile, and a
step ends when both are over. What a profile's numbers mean for a part of a model is assumed: see
`BlockLoad.by_profile`. On a real device all of this is measured.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpubalance.planning.pipeline.problem import (
    BlockLoad,
    Cut,
    CutProblem,
    Graph,
    Orders,
    Segment,
    Task,
    Timeline,
)
from gpubalance.planning.pipeline.schedule import simulate
from gpubalance.settings.device import DeviceProfile, JointProfile

# A GPU starts a step the moment the one before ends, as the host has queued it by then. A simulated
# device counts its step from that moment too if the host comes within this time, so that a step
# takes what its profile says.
QUEUED_WITHIN_S = 0.015
# A host that comes later than that makes a step longer by the part of its delay that is beyond this
# part of the longest compute time: so far ahead it queues a GPU's steps.
_AHEAD = 0.5
# A step whose real compute ends too late by more than this part of its paced time does not follow
# the profile.
LATE_BY = 0.01


class Clock:
    """Reads the time at four points of a replica's step, in seconds on the monotonic clock.

    It counts the steps in which the replica had its own gradients: when a cluster hangs, this tells
    which device the others wait for. `counts_computed_steps`: it is called for that even if nothing
    else needs it.
    """

    counts_computed_steps = False
    computed_steps = 0

    def lacks(self, _micro_batch: int) -> str:
        """Why the device's memory does not hold this many samples, by its profile; else empty."""
        return ""

    def begin(self, _batch: int, _micro_batch: int, *, xla: bool = False) -> float:
        """Called when the replica's inputs are there, and its compute begins, with XLA or not."""
        del xla
        return time.perf_counter()

    def computed(self) -> float:
        """Called when the replica's own gradients are there."""
        self.computed_steps += 1
        return time.perf_counter()

    def summed(self) -> float:
        """Called when the sum of all replicas' gradients is there."""
        return time.perf_counter()

    def finished(self) -> float:
        """Called when the replica's weights are updated."""
        return time.perf_counter()


class ComputeTimes:
    """The compute times of a simulated device's steps: its profile's, with drift and noise."""

    def __init__(self, profile: DeviceProfile, *, seed: int) -> None:
        self._profile = profile
        self._random = random.Random(seed)  # noqa: S311  (noise, not a secret)

    def next_s(
        self, batch: int, micro_batch: int | None = None, *, elapsed_s: float = 0.0
    ) -> float:
        """The seconds of the next step, `elapsed_s` after the first began, with its own noise."""
        profile = self._profile
        factor = profile.drift_at(elapsed_s)
        if profile.noise:
            factor *= max(0.0, self._random.gauss(1.0, profile.noise))
        return profile.compute_s(batch, micro_batch) * factor


@dataclass(eq=False)
class PacedClock(Clock):
    """A simulated device's clock: it sleeps until its profile's time, and knows its memory.

    All replicas' clocks are `together`. `in_cluster`: the others are elsewhere, and their times
    unknown. `others_compute`: other devices compute meanwhile, as replicas of a joint run do, or in
    other workers. `steps` counts its steps, `late_steps` those whose real compute took longer than
    the profile's time. `free_s` is when the device ended its last step, by its profile: the host
    may hear of it later. While it has nothing to do, as samples do not come or nothing is measured,
    the caller moves that on: else the host would be late for the next step.
    """

    replica: int
    profile: DeviceProfile
    joint: JointProfile
    together: list[PacedClock]
    seed: int
    others_compute: bool
    in_cluster: bool
    free_s = 0.0
    steps = late_steps = 0
    _first_s: float | None = None
    _came_s = _began_s = _compute_s = _computed_s = _summed_s = 0.0
    _late = False

    def __post_init__(self) -> None:
        self._times = ComputeTimes(
            self.profile, seed=noise_seed(self.seed, self.replica)
        )

    def lacks(self, micro_batch: int) -> str:
        """Why the profile's memory does not hold this many samples; else empty."""
        memory = self.profile.memory
        needed = self.profile.memory_at(micro_batch, self.joint.extra_memory)
        if memory is None or needed <= memory:
            return ""
        return f"OOM on replica {self.replica}: batch {micro_batch} needs {needed} of {memory} B"

    def begin(self, batch: int, micro_batch: int, *, xla: bool = False) -> float:
        """Returns when the step's compute counts from."""
        now = time.perf_counter()
        if self._first_s is None:
            self._first_s = self.free_s = now
        elapsed_s = now - self._first_s
        self._compute_s = self._times.next_s(
            int(batch), int(micro_batch), elapsed_s=elapsed_s
        )
        if self.others_compute:
            self._compute_s *= self.joint.contention
        if xla:
            self._compute_s *= self.profile.xla_factor or 1.0
        self._came_s = now
        # The host waits for the last of the devices, a GPU that ended earlier does not: its next
        # step is queued.
        all_free_s = max(clock.free_s for clock in self.together)
        self._began_s = self.free_s + self._counted_s(now - all_free_s)
        return self._began_s

    def computed(self) -> float:
        """Sleeps until the profile's compute time is over; a longer real one counts in full."""
        over_s = max(0.0, time.perf_counter() - self._came_s - self._compute_s)
        self._late = over_s > LATE_BY * self._compute_s
        self._computed_s = self._began_s + self._compute_s + over_s
        sleep_until(self._computed_s)
        self.computed_steps += 1
        return self._computed_s

    def summed(self) -> float:
        """Sleeps until the joint run's sync is over. Called after all replicas have computed.

        In a cluster the sync counts from when the sum is there, on top of the real all-reduce's
        time.
        """
        if self.in_cluster:
            began_s = time.perf_counter()
        else:
            began_s = max(clock._computed_s for clock in self.together)
        self._summed_s = self._on_time(began_s + self.joint.sync_s)
        return self._summed_s

    def finished(self) -> float:
        """Sleeps until the profile's update is over; the next step counts from then."""
        self.free_s = self._on_time(self._summed_s + self.profile.update_s)
        self.steps += 1
        self.late_steps += self._late
        return self.free_s

    def _on_time(self, target_s: float) -> float:
        """Sleeps until the target, and returns it, or a later end if the host is late for it."""
        counted_s = self._counted_s(sleep_until(target_s))
        self._late = self._late or counted_s > 0
        return target_s + counted_s

    def _counted_s(self, late_s: float) -> float:
        """The part of the host's lateness that counts as the device's time.

        The host's work between steps does not.
        """
        if late_s <= QUEUED_WITHIN_S:
            return 0.0
        ahead_s = _AHEAD * max(clock._compute_s for clock in self.together)
        return max(0.0, late_s - ahead_s)


def sleep_until(target_s: float) -> float:
    """Sleeps until then; returns by how many seconds it was called late, below 0 if it slept."""
    late_s = time.perf_counter() - target_s
    if late_s < 0:
        time.sleep(-late_s)
    return late_s


def noise_seed(seed: int, replica: int) -> int:
    """The seed of one replica's noise, the same in every run with this seed."""
    return seed * 1009 + replica


def clocks(
    profiles: Sequence[DeviceProfile | None],
    joint: JointProfile,
    *,
    seed: int,
    in_cluster: bool = False,
) -> list[Clock]:
    """A clock for each replica, in order. In a cluster each process uses only its own."""
    others_compute = len(profiles) > 1
    if others_compute:
        joint = joint.among(profiles)
    else:
        joint = JointProfile(contention=joint.contention)
    together: list[PacedClock] = []
    all_clocks: list[Clock] = []
    for replica, profile in enumerate(profiles):
        if profile is None:
            all_clocks.append(Clock())
        else:
            clock = PacedClock(
                replica, profile, joint, together, seed, others_compute, in_cluster
            )
            together.append(clock)
            all_clocks.append(clock)
    return all_clocks


@dataclass(eq=False)
class PipelinePace:
    """What a pipeline's steps take by the devices' profiles.

    `steps` counts them, `late_steps` those whose real compute took longer. `free_s` is when the
    last one ended, `peak_bytes` the most that each device has held.
    """

    profiles: Sequence[DeviceProfile]
    graph: Graph
    segments: tuple[Segment, ...]
    joint: JointProfile
    micro_batch: int
    seed: int
    steps = late_steps = 0
    free_s = 0.0
    _first_s: float | None = None
    _began_s = 0.0

    def __post_init__(self) -> None:
        if len({segment.device for segment in self.segments}) == 1:
            self.joint = JointProfile()
        self._times = []
        for device, profile in enumerate(self.profiles):
            self._times.append(
                ComputeTimes(profile, seed=noise_seed(self.seed, device))
            )
        self.peak_bytes: list[int | None] = [None] * len(self.profiles)

    @property
    def next_s(self) -> float:
        """When a step that is queued now begins: now, or at the last one's end a moment ago."""
        now = time.perf_counter()
        return self.free_s if now - self.free_s < QUEUED_WITHIN_S else now

    def begin(self) -> None:
        """Decides what the next step's passes take: each draws its own noise."""
        self._began_s = self.next_s
        now = time.perf_counter()
        if self._first_s is None:
            self._first_s = now
        loads = []
        for profile, times in zip(self.profiles, self._times, strict=True):
            whole_s = times.next_s(self.micro_batch, elapsed_s=now - self._first_s)
            whole_s *= self.joint.contention
            loads.append(
                BlockLoad.by_profile(self.graph, profile, self.micro_batch, whole_s)
            )
        problem = CutProblem(
            self.graph,
            tuple(loads),
            self.micro_batch,
            micro_batches=1,
            latency_s=self.joint.link_latency_s,
            bytes_per_s=self.joint.link_bytes_per_s,
        )
        self._cut = Cut(problem, self.segments)
        self._held = [0.0] * len(loads)
        for segment, size in zip(
            self.segments, self._cut.costs.fixed_bytes, strict=True
        ):
            self._held[segment.device] += size

    def hold(self, task: Task) -> None:
        """Notes what the task's device holds from now on.

        Raises ResourceExhaustedError if that is too much for it.
        """
        device = self.segments[task.segment].device
        live = self._cut.costs.live_bytes[task.segment]
        if task.kind == "forward":
            self._held[device] += live
        else:
            self._held[device] -= live
        needs = int(self._held[device]) + self.joint.extra_memory
        memory = self.profiles[device].memory
        self.peak_bytes[device] = max(self.peak_bytes[device] or 0, needs)
        if memory is not None and needs > memory:
            import tensorflow as tf  # here, as devices' clocks are used without it

            message = f"OOM on replica {device}: its stage needs {needs} of {memory} B"
            raise tf.errors.ResourceExhaustedError(None, None, message)

    def end(self, orders: Orders) -> Timeline:
        """Waits until the step is over; it takes longer where real compute took longer."""
        timeline = simulate(self._cut, orders)
        late_s = sleep_until(self._began_s + timeline.step_time_s)
        self.steps += 1
        # A little lateness is the host's own work, not the devices'
        if late_s > QUEUED_WITHIN_S:
            self.late_steps += 1
            timeline = timeline.lasting(timeline.step_time_s + late_s)
        self.free_s = self._began_s + timeline.step_time_s
        return timeline

    def alone(self, times: int) -> dict[str, Any]:
        """What BlockTimed says of the only segment, measured so many times."""
        costs = []
        for _ in range(times):
            self.begin()
            self.hold(Task(0, "forward", 0))
            costs.append(self._cut.costs)
        return {
            "forward_s": tuple(cost.forward_s[0] for cost in costs),
            "backward_s": tuple(cost.backward_s[0] for cost in costs),
            "update_s": tuple(cost.update_s[0] for cost in costs),
            "fixed_bytes": int(costs[0].fixed_bytes[0]),
            "held_bytes": int(costs[0].live_bytes[0]),
            "working_bytes": 0,
        }
