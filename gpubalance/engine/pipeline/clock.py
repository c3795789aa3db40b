"""The clocks of a pipeline's devices: by the device's own time, or by a profile.

On a paced device a segment's forward pass of m samples takes a third of (alpha + beta · m) times the segment's share
of the model's operations, its backward pass two thirds, its update update_s times its share of the weights. Its memory
is base_memory times that share, and for each micro-batch in flight m · memory_per_sample times the segment's share of
the activations. These shares are assumptions; on a real device all of this is measured.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from gpubalance.engine import runtime
from gpubalance.engine.pace import QUEUED_WITHIN_S, ComputeTimes, noise_seed, sleep_until
from gpubalance.planning.pipeline.graph import Graph
from gpubalance.planning.pipeline.segments import Segment
from gpubalance.planning.pipeline.timeline import Task
from gpubalance.settings.device import Device, DeviceProfile, JointProfile


class Clock:
    """A real device's clock. If stamped, it waits for queued work, so that its times are the device's own."""

    free_s = 0.0  # when its last step ended by its profile, if it has one
    tasks = late_tasks = 0
    peak_bytes: int | None = None  # by its profile, if that tells

    def __init__(self, name: str) -> None:
        self._name = name
        self.is_stamped = False

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


@dataclass(frozen=True)
class Shares:
    """A segment's fractions of the model."""

    operations: float
    weights: float
    activations: float


class PacedClock(Clock):
    """A simulated device's clock: it waits until its profile's time, and refuses what the memory there does not hold.

    `tasks` counts its tasks, `late_tasks` those whose real compute took longer than the profile's time.
    """

    def __init__(
        self,
        number: int,
        profile: DeviceProfile,
        joint: JointProfile,
        shares: Mapping[int, Shares],
        micro_batch: int,
        *,
        seed: int,
    ) -> None:
        """`shares` has those of its segments, by their numbers."""
        self._number = number
        self._profile = profile
        self._joint = joint
        self._shares = shares
        self._micro_batch = micro_batch
        self._times = ComputeTimes(profile, seed=noise_seed(seed, number))
        self._first_s: float | None = None
        self.free_s = 0.0
        self._began_s = 0.0
        self._lines_s: dict[int, float] = {}
        self._held = dict.fromkeys(shares, 0)
        self.tasks = self.late_tasks = 0

    def start(self, began_s: float) -> None:
        """Begins a step, with nothing of another one held or on its way."""
        self._first_s = began_s if self._first_s is None else self._first_s
        self.free_s = began_s
        self._lines_s.clear()
        self._held = dict.fromkeys(self._shares, 0)

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
        limit = self._profile.memory
        if limit is None:
            return
        of_each = {segment: self.memory_bytes(segment) for segment in self._shares}
        needed = sum(one["fixed_bytes"] + self._held[segment] * one["held_bytes"] for segment, one in of_each.items())
        needed += self._joint.extra_memory
        self.peak_bytes = max(self.peak_bytes or 0, needed)
        if needed > limit:
            raise tf.errors.ResourceExhaustedError(
                None, None, f"OOM on replica {self._number}: its stage needs {needed} of {limit} B"
            )

    def memory_bytes(self, segment: int) -> dict[str, int]:
        """The segment's shares of the profile's memory."""
        shares, profile = self._shares[segment], self._profile
        held = self._micro_batch * profile.memory_per_sample * shares.activations
        return {"fixed_bytes": int(profile.base_memory * shares.weights), "held_bytes": int(held), "working_bytes": 0}

    def end(self, task: Task | None) -> float:
        """Waits until the profile's time for the task is over; the end, later where real compute took longer."""
        ends_s = self._began_s + self._lasts_s(task)
        late_s = sleep_until(ends_s)
        self.tasks += 1
        self.late_tasks += late_s > QUEUED_WITHIN_S
        self.free_s = ends_s + (late_s if late_s > QUEUED_WITHIN_S else 0.0)
        return self.free_s

    def _lasts_s(self, task: Task | None) -> float:
        if task is None:
            return self._profile.update_s * sum(shares.weights for shares in self._shares.values())
        elapsed_s = self._began_s - (self._first_s or 0.0)
        whole_s = self._times.next_s(self._micro_batch, elapsed_s=elapsed_s) * self._joint.contention
        self._held[task.segment] -= task.kind == "backward"
        return whole_s * (1 / 3 if task.kind == "forward" else 2 / 3) * self._shares[task.segment].operations

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
    clocks = []
    for number, (device, name) in enumerate(zip(devices, names, strict=True)):
        shares = {i: shares_of(graph, segment) for i, segment in enumerate(segments) if segment.device == number}
        clocks.append(
            PacedClock(number, device.profile, joint, shares, micro_batch, seed=seed) if device.profile else Clock(name)
        )
    return clocks


def shares_of(graph: Graph, segment: Segment) -> Shares:
    """The segment's operations, weights and activations, each as a fraction of the model's."""

    def part(name: str) -> float:
        sizes = [getattr(block, name) for block in graph.blocks]
        return float(sum(sizes[segment.blocks]) / (sum(sizes) or 1))

    return Shares(part("share"), part("weights_bytes"), part("activation_bytes"))
