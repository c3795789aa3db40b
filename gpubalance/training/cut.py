"""A measured cut of a model's layers, on the devices of this process."""

from __future__ import annotations

from dataclasses import dataclass

from gpubalance.errors import OutOfMemory
from gpubalance.numbers.units import format_bytes
from gpubalance.planning.pipeline.graph import Segment
from gpubalance.planning.pipeline.timeline import Task
from gpubalance.results.layers import Layers
from gpubalance.settings.device import Device, JointProfile


@dataclass(frozen=True)
class Cut:
    """A result's cut, with its `devices` here and TensorFlow's `names` for them."""

    result: Layers
    devices: tuple[Device, ...]
    joint: JointProfile
    names: tuple[str, ...]

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Which blocks are on which device."""
        return tuple(Segment(*one) for one in self.result.segments)

    def orders(self, micro_batches: int) -> list[tuple[Task, ...]]:
        """Each device's tasks in the measured order; a smaller batch lacks the last micro-batches' tasks."""
        timed = sorted(self.result.timeline.tasks, key=lambda one: one.start_s)
        tasks = [(one.device, Task(one.segment, one.kind, one.micro_batch)) for one in timed]
        return [
            tuple(task for owner, task in tasks if owner == device and task.micro_batch < micro_batches)
            for device in range(len(self.devices))
        ]

    def out_of_memory(self, device: int, doing: str) -> OutOfMemory:
        """The error of a device that holds less than when it was measured, or whose part of the model has grown."""
        peak = next((one.memory_peak_bytes for one in self.result.stages if one.device == device), None)
        before = f": it held {format_bytes(peak)} when the model was cut" if peak is not None else ""
        error = OutOfMemory(f"{self.devices[device].label} ran out of memory in {doing}{before}", replica=device)
        size = self.result.micro_batch
        smaller = f", --micro-batch {size // 2} makes its parts smaller" if size > 1 else ""
        error.remedy = f"cut it again: gpubalance layers --margin 1GiB leaves more memory free{smaller}"
        return error
