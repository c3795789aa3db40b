"""Holds a pipeline on simulated devices to their profiles, by the simulated schedule.

The real step runs meanwhile, and a step ends when both are over. What a profile's numbers mean for a part of a model
is assumed: see `Load.by_profile`. On a real device all of this is measured.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from gpubalance.engine.failures import TaskFailedError
from gpubalance.engine.pace import QUEUED_WITHIN_S, ComputeTimes, noise_seed, sleep_until
from gpubalance.planning.pipeline.graph import Graph, Segment
from gpubalance.planning.pipeline.problem import Cut, Load, Problem
from gpubalance.planning.pipeline.schedule import simulate
from gpubalance.planning.pipeline.timeline import Orders, Task, Timeline
from gpubalance.settings.device import Device, DeviceProfile, JointProfile


def pace_of(devices: Sequence[Device], *placed: Any) -> Pace | None:
    """The pace of what is `placed` on these devices, as Pace takes it; None if they have no profiles."""
    profiles = [device.profile for device in devices if device.profile is not None]
    return Pace(profiles, *placed) if profiles else None


@dataclass(eq=False)
class Pace:
    """What steps take by the devices' profiles. `steps` counts them, `late_steps` those whose real compute took longer.

    `free_s` is when the last one ended, `peak_bytes` the most that each device has held.
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

    def __post_init__(self) -> None:
        if len({one.device for one in self.segments}) == 1:
            self.joint = JointProfile()
        self._times = [ComputeTimes(one, seed=noise_seed(self.seed, n)) for n, one in enumerate(self.profiles)]
        self.peak_bytes: list[int | None] = [None] * len(self.profiles)

    def _cut(self) -> Cut:
        """What the next step's passes take: each draws its own noise."""
        now, joint = time.perf_counter(), self.joint
        self._first_s = now if self._first_s is None else self._first_s
        loads = []
        for profile, times in zip(self.profiles, self._times, strict=True):
            whole_s = times.next_s(self.micro_batch, elapsed_s=now - self._first_s) * joint.contention
            loads.append(Load.by_profile(self.graph, profile, self.micro_batch, whole_s))
        link = joint.link_latency_s, joint.link_bytes_per_s
        return Cut(Problem(self.graph, tuple(loads), self.micro_batch, 1, *link), self.segments)

    def begin(self, orders: Orders) -> Cut:
        """What a step is to take. Raises TaskFailedError for a task that its device's memory does not hold."""
        cut, extra = self._cut(), self.joint.extra_memory
        for device, (order, load) in enumerate(zip(orders, cut.problem.loads, strict=False)):
            if not order:
                continue
            needs = int(cut.held(order)[0]) + extra
            self.peak_bytes[device] = max(self.peak_bytes[device] or 0, needs)
            if needs > load.memory_bytes:
                ends = range(1, len(order) + 1)
                first = next(end for end in ends if cut.held(order[:end])[0] + extra > load.memory_bytes)
                message = f"OOM on replica {device}: its stage needs {needs} of {load.memory_bytes} B"
                cause = tf.errors.ResourceExhaustedError(None, None, message)
                raise TaskFailedError(device, doing(order[first - 1], self.segments)) from cause
        return cut

    def end(self, cut: Cut, orders: Orders, began_s: float) -> Timeline:
        """Waits until the step is over; it takes longer where real compute took longer."""
        timeline = simulate(cut, orders)
        late_s = sleep_until(began_s + timeline.step_time_s)
        self.steps += 1
        if late_s > QUEUED_WITHIN_S:  # a little lateness is the host's own work, not the devices'
            self.late_steps += 1
            timeline = timeline.lasting(timeline.step_time_s + late_s)
        self.free_s = began_s + timeline.step_time_s
        return timeline

    def alone(self, times: int) -> dict[str, Any]:
        """What BlockTimed says of the only segment, measured so many times."""
        self.begin([[Task(0, "forward", 0), Task(0, "backward", 0)]])
        costs = [self._cut().costs for _ in range(times)]
        found: dict[str, Any] = {"working_bytes": 0}
        for name in ("forward_s", "backward_s", "update_s"):
            found[name] = tuple(getattr(one, name)[0] for one in costs)
        return found | {"fixed_bytes": int(costs[0].fixed_bytes[0]), "held_bytes": int(costs[0].live_bytes[0])}


def doing(task: Task, segments: Sequence[Segment]) -> str:
    """A task in words."""
    one = segments[task.segment]
    return f"the {task.kind} pass of micro-batch {task.micro_batch} in blocks {one.first} to {one.last}"
