"""What a graph is cut for: what its blocks cost on each device, and what a cut of it takes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from gpubalance.planning.pipeline.graph import Graph, Link, Segment, links_between
from gpubalance.planning.pipeline.timeline import Task
from gpubalance.settings.device import DeviceProfile


@dataclass(frozen=True)
class Load:
    """What each block costs a device: seconds of a micro-batch's forward and backward, and of a step's update.

    A block takes `fixed_bytes` of weights, gradients and slots, and `live_bytes` for each micro-batch in flight.
    `memory_bytes` is the memory that they may take. Infinite seconds keep a block off the device.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    update_s: tuple[float, ...]
    fixed_bytes: tuple[float, ...]
    live_bytes: tuple[float, ...]
    memory_bytes: float = math.inf

    @classmethod
    def by_profile(cls, graph: Graph, profile: DeviceProfile, micro_batch: int, whole_s: float) -> Load:
        """What is assumed of a simulated device, on which the model's passes take `whole_s`.

        A forward pass takes a third of that, times the block's share of the model's operations, a backward pass two
        thirds; fixed bytes and the update go by its share of the weights, live bytes by that of the activations.
        """

        def shares(name: str, of: float) -> tuple[float, ...]:
            sizes = [getattr(block, name) for block in graph.blocks]
            return tuple(of * size / (sum(sizes) or 1) for size in sizes)

        return cls(
            shares("share", whole_s / 3),
            shares("share", whole_s * 2 / 3),
            shares("weights_bytes", profile.update_s),
            shares("weights_bytes", profile.base_memory),
            shares("activation_bytes", micro_batch * profile.memory_per_sample),
            math.inf if profile.memory is None else profile.memory,
        )


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

    @property
    def global_batch(self) -> int:
        """The samples of a step."""
        return self.micro_batch * self.micro_batches

    def transfer_s(self, bytes_per_sample: float) -> float:
        """Seconds of a transfer in one direction."""
        sent = self.micro_batch * bytes_per_sample
        return self.latency_s + (sent / self.bytes_per_s if self.bytes_per_s else 0.0)


@dataclass(frozen=True)
class Cut:
    """A problem's blocks in segments."""

    problem: Problem
    segments: tuple[Segment, ...]

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """What segments give each other."""
        return links_between(self.problem.graph, self.segments)

    @cached_property
    def costs(self) -> Load:
        """What each segment costs its device."""
        pairs = [(self.problem.loads[one.device], one.blocks) for one in self.segments]

        def sums(name: str) -> tuple[float, ...]:
            return tuple(sum(getattr(load, name)[blocks]) for load, blocks in pairs)

        return Load(sums("forward_s"), sums("backward_s"), sums("update_s"), sums("fixed_bytes"), sums("live_bytes"))

    def held(self, order: Sequence[Task]) -> tuple[float, int]:
        """The most bytes that a device needs while it does these tasks, and the most micro-batches in flight."""
        in_flight, most = Counter[int](), 0
        live = most_live = 0.0
        for number, kind, _ in order:
            change = 1 if kind == "forward" else -1
            in_flight[number] += change
            live += change * self.costs.live_bytes[number]
            most, most_live = max(most, in_flight[number]), max(most_live, live)
        return sum(self.costs.fixed_bytes[number] for number in in_flight) + most_live, most
