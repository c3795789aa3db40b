"""The clocks of a pipeline's devices: by the device's own time, or by a profile.

On a paced device a pass of m samples takes its segment's part of (alpha + beta · m), as `Load.by_profile` assumes it;
on a real device all of this is measured.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import tensorflow as tf

from gpubalance.engine import runtime
from gpubalance.engine.pace import QUEUED_WITHIN_S, ComputeTimes, noise_seed, sleep_until
from gpubalance.planning.pipeline.graph import Graph, Segment
from gpubalance.planning.pipeline.problem import Cut, Load, Problem
from gpubalance.planning.pipeline.timeline import Task
from gpubalance.settings.device import Device, DeviceProfile, JointProfile


class Clock:
    """A real device's clock. If stamped, it waits for queued work, so that its times are the device's own."""

    is_stamped = False
    free_s = 0.0  # when its last step ended by its profile, if it has one
    tasks = late_tasks = 0
    peak_bytes: int | None = None  # by its profile, if that tells

    def __init__(self, name: str) -> None:
        self._name = name

    def start(self, began_s: float) -> None:
        """Begins a step."""
        del began_s

    def begin(self, task: Task | None, sent_s: float = 0.0) -> tuple[float, float]:
        """When all inputs of the task were on the device, and when it began; None is the update.

        The last of them was sent at `sent_s`.
        """
        del task, sent_s
        now = self._now()
        return now, now

    def end(self, task: Task | None) -> float:
        """When the task ended, None for the update."""
        del task
        return self._now()

    def arrives(self, device: int, nbytes: int, sent_s: float) -> float:
        """When what was sent at `sent_s` arrives on another device; `sent_s` itself if that is unknown."""
        del device, nbytes
        return sent_s

    def memory_bytes(self, segment: int) -> dict[str, int]:
        """Replacements for measured memory figures of a segment, by the names of BlockTimed's fields."""
        del segment
        return {}

    def _now(self) -> float:
        if self.is_stamped:
            runtime.wait_for([self._name])
        return time.perf_counter()


class PacedClock(Clock):
    """A simulated device's clock: it waits until its profile's time, and refuses what the memory there does not hold.

    `tasks` counts its tasks, `late_tasks` those whose real compute took longer than the profile's time.
    """

    def __init__(self, number: int, profile: DeviceProfile, joint: JointProfile, cut: Cut, *, seed: int) -> None:
        """`cut` is of a device like this whose passes through the model take a second."""
        self._number, self._profile, self._joint = number, profile, joint
        self._costs, self._micro_batch = cut.costs, cut.problem.micro_batch
        self._own = [segment for segment, one in enumerate(cut.segments) if one.device == number]
        self._times = ComputeTimes(profile, seed=noise_seed(seed, number))
        self._first_s: float | None = None
        self._began_s = 0.0
        self._lines_s: dict[int, float] = {}
        self._held = Counter[int]()

    def start(self, began_s: float) -> None:
        """Begins a step, with nothing of another one held or on its way."""
        self._first_s = began_s if self._first_s is None else self._first_s
        self.free_s = began_s
        self._lines_s.clear()
        self._held.clear()

    def begin(self, task: Task | None, sent_s: float = 0.0) -> tuple[float, float]:
        """When inputs arrived and the task begins. Raises ResourceExhaustedError if the micro-batch does not fit."""
        if task is not None and task.kind == "forward":
            self._held[task.segment] += 1
            self._check_memory()
        target_s, now = max(self.free_s, sent_s), time.perf_counter()
        # A little lateness is the host's own work, not the device's.
        self._began_s = target_s if now - target_s < QUEUED_WITHIN_S else now
        return sent_s, self._began_s

    def _check_memory(self) -> None:
        limit, needed = self._profile.memory, self._joint.extra_memory
        if limit is None:
            return
        for segment in self._own:
            needs = self.memory_bytes(segment)
            needed += needs["fixed_bytes"] + self._held[segment] * needs["held_bytes"]
        self.peak_bytes = max(self.peak_bytes or 0, needed)
        if needed > limit:
            raise tf.errors.ResourceExhaustedError(
                None, None, f"OOM on replica {self._number}: its stage needs {needed} of {limit} B"
            )

    def memory_bytes(self, segment: int) -> dict[str, int]:
        """The segment's shares of the profile's memory."""
        fixed, held = self._costs.fixed_bytes[segment], self._costs.live_bytes[segment]
        return {"fixed_bytes": int(fixed), "held_bytes": int(held), "working_bytes": 0}

    def end(self, task: Task | None) -> float:
        """Waits until the profile's time for the task is over; the end, later where real compute took longer."""
        ends_s = self._began_s + self._lasts_s(task)
        late_s = sleep_until(ends_s)
        is_late = late_s > QUEUED_WITHIN_S
        self.tasks += 1
        self.late_tasks += is_late
        self.free_s = ends_s + (late_s if is_late else 0.0)
        return self.free_s

    def _lasts_s(self, task: Task | None) -> float:
        costs = self._costs
        if task is None:
            return sum(costs.update_s[segment] for segment in self._own)
        elapsed_s = self._began_s - (self._first_s or 0.0)
        whole_s = self._times.next_s(self._micro_batch, elapsed_s=elapsed_s) * self._joint.contention
        self._held[task.segment] -= task.kind == "backward"
        return whole_s * (costs.forward_s if task.kind == "forward" else costs.backward_s)[task.segment]

    def arrives(self, device: int, nbytes: int, sent_s: float) -> float:
        """When a transfer arrives: those to one device take turns, while other work goes on."""
        rate = self._joint.link_bytes_per_s
        lasts_s = self._joint.link_latency_s + (nbytes / rate if rate else 0.0)
        self._lines_s[device] = max(self._lines_s.get(device, 0.0), sent_s) + lasts_s
        return self._lines_s[device]


def clocks_of(
    devices: Sequence[Device],
    names: Sequence[str],
    graph: Graph,
    segments: Sequence[Segment],
    joint: JointProfile,
    micro_batch: int,
    *,
    seed: int,
) -> list[Clock]:
    """A clock for each device."""
    if len({segment.device for segment in segments}) < 2:
        joint = JointProfile()

    def paced(number: int, profile: DeviceProfile) -> PacedClock:
        load = Load.by_profile(graph, profile, micro_batch, 1.0)
        cut = Cut(Problem(graph, (load,) * len(devices), micro_batch, 1), tuple(segments))
        return PacedClock(number, profile, joint, cut, seed=seed)

    pairs = enumerate(zip(devices, names, strict=True))
    return [paced(number, one.profile) if one.profile else Clock(name) for number, (one, name) in pairs]
