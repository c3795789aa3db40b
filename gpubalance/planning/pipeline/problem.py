"""What a graph is cut for: what its blocks cost on each device, and how they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpubalance.planning.pipeline.graph import Graph
from gpubalance.planning.pipeline.schedule import most_held
from gpubalance.planning.pipeline.segments import Link, Segment
from gpubalance.planning.pipeline.simulate import Costs
from gpubalance.planning.pipeline.timeline import Task


@dataclass(frozen=True)
class Load:
    """What each block costs a device: seconds of a micro-batch's forward and backward, and of a step's update.

    A block takes `fixed_bytes` of weights, gradients and slots, and `live_bytes` for each micro-batch in flight.
    `memory_bytes` is the memory that they may take; None is no limit. Infinite seconds keep a block off the device.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    update_s: tuple[float, ...]
    fixed_bytes: tuple[float, ...]
    live_bytes: tuple[float, ...]
    memory_bytes: float | None = None


@dataclass(frozen=True)
class Problem:
    """A graph and the devices for it.

    A transfer takes `latency_s` plus its bytes / `bytes_per_s`, which takes no time if None. At least `least_devices`
    are used.
    """

    graph: Graph
    loads: tuple[Load, ...]
    micro_batch: int
    micro_batches: int
    latency_s: float = 0.0
    bytes_per_s: float | None = None
    least_devices: int = 1

    def transfer_s(self, bytes_per_sample: float) -> float:
        """Seconds of a transfer in one direction."""
        sent = self.micro_batch * bytes_per_sample
        return self.latency_s + (sent / self.bytes_per_s if self.bytes_per_s else 0.0)

    def costs(self, segments: Sequence[Segment], links: Sequence[Link]) -> Costs:
        """The seconds of these segments' tasks and transfers, and of each device's update."""
        loads = [self.loads[segment.device] for segment in segments]
        update_s = [0.0] * len(self.loads)
        for segment, load in zip(segments, loads, strict=True):
            update_s[segment.device] += sum(load.update_s[segment.blocks])
        return Costs(
            tuple(sum(load.forward_s[segment.blocks]) for segment, load in zip(segments, loads, strict=True)),
            tuple(sum(load.backward_s[segment.blocks]) for segment, load in zip(segments, loads, strict=True)),
            tuple(self.transfer_s(link.bytes_per_sample) for link in links),
            tuple(update_s),
        )

    def peak_bytes(self, segments: Sequence[Segment], order: Sequence[Task]) -> float:
        """The most memory that a device needs for its segments while it does these tasks."""
        live = [sum(self.loads[segment.device].live_bytes[segment.blocks]) for segment in segments]
        own = [segments[number] for number in {task.segment for task in order}]
        fixed = sum(sum(self.loads[segment.device].fixed_bytes[segment.blocks]) for segment in own)
        return fixed + most_held(order, live)[0]
