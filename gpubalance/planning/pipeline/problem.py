"""A model's graph as a pipeline sees it, what its blocks cost on each device, and what a cut of it
takes.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from gpubalance.planning.pipeline.timeline import Task
from gpubalance.settings.device import DeviceProfile


class Edge(NamedTuple):
    """A tensor that leaves its block. `targets` are the later blocks that use it, in order."""

    source: int
    targets: tuple[int, ...]
    bytes_per_sample: int


class Block(NamedTuple):
    """Consecutive layer calls that stay together. `share` is their part of the model's operations.

    `activation_bytes` is what the forward pass keeps of a sample for the backward pass.
    """

    name: str
    calls: int
    weights_bytes: int
    activation_bytes: int
    share: float


@dataclass(frozen=True)
class Graph:
    """Blocks in an order in which each comes after its inputs. It may be cut before
    each of them.
    """

    blocks: tuple[Block, ...]
    edges: tuple[Edge, ...]

    @cached_property
    def crossing_bytes(self) -> tuple[int, ...]:
        """For each block, the bytes per sample that a cut before it would send on."""
        return tuple(
            sum(
                edge.bytes_per_sample
                for edge in self.edges
                if edge.source < cut <= edge.targets[-1]
            )
            for cut in range(len(self.blocks))
        )


class Segment(NamedTuple):
    """The blocks `first` to `last`, inclusive, on one device. A device's one or more segments are
    its stage.
    """

    first: int
    last: int
    device: int

    @property
    def blocks(self) -> slice:
        """The slice of a sequence of all blocks that selects its blocks."""
        return slice(self.first, self.last + 1)


class Link(NamedTuple):
    """What one segment gives another, by their numbers; nothing is sent if both are on
    one device.
    """

    source: int
    target: int
    bytes_per_sample: int


def links_between(graph: Graph, segments: Sequence[Segment]) -> tuple[Link, ...]:
    """A link for each pair of segments of which one takes tensors of the other; a tensor counts
    once for a pair.
    """
    owner = {
        block: number
        for number, one in enumerate(segments)
        for block in range(one.first, one.last + 1)
    }
    sent: dict[tuple[int, int], int] = defaultdict(int)
    for edge in graph.edges:
        source = owner.get(edge.source)
        for target in {owner.get(block) for block in edge.targets} - {source, None}:
            if source is not None and target is not None:
                sent[source, target] += edge.bytes_per_sample
    return tuple(Link(*pair, size) for pair, size in sorted(sent.items()))


@dataclass(frozen=True)
class BlockLoad:
    """What each block costs a device: seconds of a micro-batch's forward and backward, and of a
    step's update.

    A block takes `fixed_bytes` of weights, gradients and slots, and `live_bytes` for each
    micro-batch in flight. `memory_bytes` is the memory that they may take. Infinite seconds keep a
    block off the device.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    update_s: tuple[float, ...]
    fixed_bytes: tuple[float, ...]
    live_bytes: tuple[float, ...]
    memory_bytes: float = math.inf

    @classmethod
    def by_profile(
        cls, graph: Graph, profile: DeviceProfile, micro_batch: int, whole_s: float
    ) -> BlockLoad:
        """What is assumed of a simulated device, on which the model's passes take `whole_s`.

        A forward pass takes a third of that, times the block's share of the model's operations, a
        backward pass two thirds; fixed bytes and the update go by its share of the weights, live
        bytes by that of the activations.
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

    def holds(self, block: int) -> bool:
        """Whether the device holds a block with one micro-batch and nothing else."""
        needs = self.fixed_bytes[block] + self.live_bytes[block]
        return math.isfinite(self.forward_s[block]) and needs <= self.memory_bytes


@dataclass(frozen=True)
class CutProblem:
    """A graph and the devices for it. A transfer takes `latency_s` plus its bytes / `bytes_per_s`,
    no time if None.
    """

    graph: Graph
    loads: tuple[BlockLoad, ...]
    micro_batch: int
    micro_batches: int
    latency_s: float = 0.0
    bytes_per_s: float | None = None

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

    problem: CutProblem
    segments: tuple[Segment, ...]

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """What segments give each other."""
        return links_between(self.problem.graph, self.segments)

    @cached_property
    def costs(self) -> BlockLoad:
        """What each segment costs its device."""
        pairs = [(self.problem.loads[one.device], one.blocks) for one in self.segments]

        def sums(name: str) -> tuple[float, ...]:
            return tuple(sum(getattr(load, name)[blocks]) for load, blocks in pairs)

        return BlockLoad(
            sums("forward_s"),
            sums("backward_s"),
            sums("update_s"),
            sums("fixed_bytes"),
            sums("live_bytes"),
        )

    def held(self, order: Sequence[Task]) -> tuple[float, int]:
        """The most bytes that a device needs while it does these tasks, and the most micro-batches
        in flight.
        """
        in_flight, most = Counter[int](), 0
        live = most_live = 0.0
        for number, kind, _ in order:
            change = 1 if kind == "forward" else -1
            in_flight[number] += change
            live += change * self.costs.live_bytes[number]
            most, most_live = max(most, in_flight[number]), max(most_live, live)
        return sum(self.costs.fixed_bytes[number] for number in in_flight) + most_live, most
