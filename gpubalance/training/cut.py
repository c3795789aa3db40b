"""A model's layers in stages, as they were measured, on the devices of this process."""

from __future__ import annotations

from dataclasses import dataclass

from gpubalance.planning.pipeline.schedule import Task
from gpubalance.planning.pipeline.segments import Segment
from gpubalance.results.layers import Layers
from gpubalance.settings.device import Device, JointProfile


@dataclass(frozen=True)
class Cut:
    """The `devices` of the result, and TensorFlow's `names` of them."""

    result: Layers
    devices: tuple[Device, ...]
    joint: JointProfile
    names: tuple[str, ...]

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Which blocks are on which device."""
        return tuple(Segment(*one) for one in self.result.segments)

    def orders(self, micro_batches: int) -> list[tuple[Task, ...]]:
        """Each device's tasks as they were measured; of a smaller batch those that it has."""
        timed = sorted(self.result.timeline.tasks, key=lambda one: one.start_s)
        tasks = [(one.device, Task(one.segment, one.kind, one.micro_batch)) for one in timed]
        return [
            tuple(task for owner, task in tasks if owner == device and task.micro_batch < micro_batches)
            for device in range(len(self.devices))
        ]
