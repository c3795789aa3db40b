"""A model's graph as a pipeline sees it: its blocks' costs, its cuts, and a step task by task."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

from gpubalance.settings.device import DeviceProfile

Pass: TypeAlias = Literal["forward", "backward"]


class Task(NamedTuple):
    """One pass of one micro-batch through one segment."""

    segment: int
    kind: Pass
    micro_batch: int


# Each device's tasks, in the order in which it does them.
Orders: TypeAlias = Sequence[Sequence[Task]]


class Timed(NamedTuple):
    """A task on its device, in seconds from the step's start.

    `sent_s` is when the last of its inputs was made, `ready_s` when all were on its device; 0 for a
    task without inputs.
    """

    segment: int
    kind: Pass
    micro_batch: int
    device: int
    sent_s: float
    ready_s: float
    start_s: float
    end_s: float

    @property
    def task(self) -> Task:
        """What was done."""
        return Task(*self[:3])


class Updated(NamedTuple):
    """A device's weight update, in seconds from the step's start."""

    device: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """One step: tasks in the order in which they began, and updates, the last of which ends it."""

    tasks: tuple[Timed, ...]
    updates: tuple[Updated, ...]

    @property
    def step_time_s(self) -> float:
        """When the step ended."""
        return max(update.end_s for update in self.updates)

    def lasting(self, seconds: float) -> Timeline:
        """The same step, all times in proportion, in so many seconds."""
        by = seconds / self.step_time_s
        tasks = []
        for task in self.tasks:
            tasks.append(
                task._replace(
                    sent_s=by * task.sent_s,
                    ready_s=by * task.ready_s,
                    start_s=by * task.start_s,
                    end_s=by * task.end_s,
                )
            )
        updates = []
        for update in self.updates:
            updates.append(
                update._replace(start_s=by * update.start_s, end_s=by * update.end_s)
            )
        return Timeline(tuple(tasks), tuple(updates))


def bubble_bound(stages: int, micro_batches: int) -> float:
    """(S−1)/(K+S−1): the idle fraction of a step with equal stages, if transfers take no time.

    Unlike stages may be idle for less: see `least_bubble`.
    """
    return (stages - 1) / (micro_batches + stages - 1)


def pipeline_throughput(rates: Sequence[float], micro_batches: int) -> float:
    """The most samples/s of any stages in a row: Σ rᵢ·qⁱ with q = 1 − 1/K, the largest r₀ first.

    `rates` are what the devices give with the whole model. A block must be the same part of it on
    each of them, each has one stage, and each stage takes what the one before gives.

    A stage that takes tᵢ for each of K micro-batches is busy for uᵢ = K·tᵢ/T of a step of T. A
    first micro-batch comes to it through all stages before it, and a last one goes back through
    them. So K·tᵢ + Σ tⱼ ≤ T over these, or uᵢ ≤ 1 − Σ uⱼ/K. That bounds the sum over any n stages:
    if the first n − 1 of them have U, all have at most 1 + q·U, hence 1 + q + … + qⁿ⁻¹. The step's
    throughput is Σ rᵢ·uᵢ, which is the largest if the n fastest devices reach that for each n.

    Two devices of 100 samples/s and 4 micro-batches give at most 100 + 75 = 175. Equal stages give
    160; stages of 1.0 and 0.8 s, of which the longer one is first, take 4.2 s and give 171.
    """
    left = 1 - 1 / micro_batches
    fastest_first = sorted(rates, reverse=True)
    return sum(rate * left**place for place, rate in enumerate(fastest_first))


def least_bubble(stages: int, micro_batches: int) -> float:
    """The least mean idle fraction of a step of any stages in a row: see `pipeline_throughput`."""
    return 1 - pipeline_throughput([1.0] * stages, micro_batches) / stages


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
    """Blocks, each after those that it takes tensors from. A cut may come before each of them."""

    blocks: tuple[Block, ...]
    edges: tuple[Edge, ...]

    @cached_property
    def is_row(self) -> bool:
        """Whether each block feeds the next, so that in any cut each segment does."""
        feeding = {
            edge.source for edge in self.edges if edge.source + 1 in edge.targets
        }
        return len(feeding) == len(self.blocks) - 1

    @cached_property
    def crossing_bytes(self) -> tuple[int, ...]:
        """For each block, the bytes per sample that a cut before it would send on."""
        crossing = [0] * len(self.blocks)
        for edge in self.edges:
            for cut in range(edge.source + 1, edge.targets[-1] + 1):
                crossing[cut] += edge.bytes_per_sample
        return tuple(crossing)


class Segment(NamedTuple):
    """The blocks `first` to `last`, inclusive, on one device: a stage or a part of it."""

    first: int
    last: int
    device: int

    @property
    def blocks(self) -> slice:
        """The slice of a sequence of all blocks that selects its blocks."""
        return slice(self.first, self.last + 1)


class Link(NamedTuple):
    """What one segment gives another, by their numbers; on one device nothing is sent."""

    source: int
    target: int
    bytes_per_sample: int


def links_between(graph: Graph, segments: Sequence[Segment]) -> tuple[Link, ...]:
    """A link for each pair of segments of which one takes tensors of the other.

    A tensor counts once for a pair.
    """
    owner = {}
    for number, segment in enumerate(segments):
        for block in range(segment.first, segment.last + 1):
            owner[block] = number
    sent: Counter[tuple[int, int]] = Counter()
    for edge in graph.edges:
        if edge.source not in owner:
            continue
        source = owner[edge.source]
        for target in {owner[block] for block in edge.targets if block in owner}:
            if target != source:
                sent[source, target] += edge.bytes_per_sample
    return tuple(Link(*pair, size) for pair, size in sorted(sent.items()))


@dataclass(frozen=True)
class BlockLoad:
    """What each block costs a device: seconds of a micro-batch's passes and of a step's update.

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
        operations = [block.share for block in graph.blocks]
        weights = [block.weights_bytes for block in graph.blocks]
        activations = [block.activation_bytes for block in graph.blocks]
        return cls(
            forward_s=_in_proportion(whole_s / 3, operations),
            backward_s=_in_proportion(whole_s * 2 / 3, operations),
            update_s=_in_proportion(profile.update_s, weights),
            fixed_bytes=_in_proportion(profile.base_memory, weights),
            live_bytes=_in_proportion(
                micro_batch * profile.memory_per_sample, activations
            ),
            memory_bytes=math.inf if profile.memory is None else profile.memory,
        )

    def holds(self, block: int) -> bool:
        """Whether the device holds a block with one micro-batch and nothing else."""
        needs = self.fixed_bytes[block] + self.live_bytes[block]
        return math.isfinite(self.forward_s[block]) and needs <= self.memory_bytes


def _in_proportion(total: float, sizes: Sequence[float]) -> tuple[float, ...]:
    return tuple(total * size / (sum(sizes) or 1) for size in sizes)


@dataclass(frozen=True)
class CutProblem:
    """A graph and the devices for it.

    A transfer takes `latency_s` plus its bytes / `bytes_per_s`, which take no time if that is None.
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
        if not self.bytes_per_s:
            return self.latency_s
        return self.latency_s + sent / self.bytes_per_s


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

        def sums(name: str) -> tuple[float, ...]:
            totals = []
            for segment in self.segments:
                of_blocks = getattr(self.problem.loads[segment.device], name)
                totals.append(sum(of_blocks[segment.blocks]))
            return tuple(totals)

        return BlockLoad(
            sums("forward_s"),
            sums("backward_s"),
            sums("update_s"),
            sums("fixed_bytes"),
            sums("live_bytes"),
        )

    def held(self, order: Sequence[Task]) -> tuple[float, int]:
        """The most bytes and the most micro-batches in flight of a device that does these tasks."""
        in_flight = Counter[int]()
        max_in_flight = 0
        live_bytes = max_bytes = 0.0
        for number, kind, _ in order:
            change = 1 if kind == "forward" else -1
            in_flight[number] += change
            live_bytes += change * self.costs.live_bytes[number]
            max_in_flight = max(max_in_flight, in_flight[number])
            max_bytes = max(max_bytes, live_bytes)
        fixed_bytes = sum(self.costs.fixed_bytes[number] for number in in_flight)
        return fixed_bytes + max_bytes, max_in_flight
