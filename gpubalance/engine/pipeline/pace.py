"""Holds a pipeline on simulated devices to their profiles, by the simulated schedule.

The real step runs meanwhile, and a step ends when both are over. What a profile's numbers mean for
a part of a model is assumed: see `BlockLoad.by_profile`. On a real device all of this is measured.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from gpubalance.engine.pace import (
    QUEUED_WITHIN_S,
    ComputeTimes,
    noise_seed,
    sleep_until,
)
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


@dataclass(eq=False)
class Pace:
    """What steps take by the devices' profiles.

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
