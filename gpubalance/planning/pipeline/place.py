"""Finds the best placing of a graph's blocks on devices, and their tasks' order, by simulation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from operator import attrgetter
from typing import TypeAlias

from gpubalance.planning.pipeline.chains import chains
from gpubalance.planning.pipeline.problem import (
    Cut,
    CutProblem,
    Graph,
    Segment,
    Task,
    Timeline,
)
from gpubalance.planning.pipeline.schedule import (
    MOST_AHEAD,
    depths_of,
    simulate,
    tasks_of,
)

# How many chains are looked at: few for a first good one, then all that may be better, up to this.
_LOOKS = (5_000, 20_000)
_MOST_PASSES = 150_000  # that are simulated after each look: a few seconds of one core
_MOST_BRANCHED = 24
_MOST_PLACINGS = 4096  # a region of branches that has more of them is left alone
_MOST_DEPTHS = 24  # of one cut
# A step may be longer by this fraction to save devices or micro-batches in flight: less than
# measurement error.
_WITHIN = 1.001


# Branches next to each other, as (first, last) blocks; no tensor passes between them.
Arms: TypeAlias = list[tuple[int, int]]


class NoPlacementError(ValueError):
    """No placing fits. `block` is the number of a block that no device holds by itself, or None."""

    block: int | None = None


@dataclass(frozen=True)
class Placement(Cut):
    """A cut, each device's tasks in order, and the resulting step by the problem's times.

    `orders`, `peak_bytes` and `in_flight` cover all the problem's devices, empty and 0 for those
    without a segment. The step may be longer or shorter by the part `off`, None if nothing is known
    of that.
    """

    orders: tuple[tuple[Task, ...], ...]
    peak_bytes: tuple[float, ...]
    in_flight: tuple[int, ...]
    timeline: Timeline
    off: float | None = None

    @property
    def step_time_s(self) -> float:
        """By the simulated schedule."""
        return self.timeline.step_time_s

    @property
    def ci95(self) -> tuple[float, float] | None:
        """Where the median step of a window is expected; None if that is unknown."""
        if self.off is None or self.off == math.inf:
            return None
        return self.step_time_s / (1 + self.off), self.step_time_s * (1 + self.off)

    @property
    def throughput(self) -> float:
        """Samples per second, by the simulated schedule."""
        return self.problem.global_batch / self.step_time_s

    @property
    def cost(self) -> tuple[float, ...]:
        """A sort key that puts the simplest of steps as short first."""
        stages = {segment.device for segment in self.segments}
        return len(stages), len(self.segments), sum(self.in_flight), self.step_time_s


def place(problem: CutProblem) -> Placement:
    """The placing on two or more devices with the shortest simulated step. Raises NoPlacementError.

    It simulates chains of segments, and placings of branches. Of those within 0.1 % of the shortest
    step it chooses the one with the fewest devices, then the fewest segments, then the fewest
    micro-batches in flight.
    """
    placements = _chained(problem)
    for cut in _branched(problem):
        placements += placings_of(cut)
    if not placements:
        raise _no_placement(problem)
    max_s = _WITHIN * min(placement.step_time_s for placement in placements)
    short = [placement for placement in placements if placement.step_time_s <= max_s]
    return min(short, key=attrgetter("cost"))


def _no_placement(problem: CutProblem) -> NoPlacementError:
    error = NoPlacementError("no cut fits")
    for block in range(len(problem.graph.blocks)):
        if not any(load.holds(block) for load in problem.loads):
            error.block = block
            break
    return error


def _chained(problem: CutProblem) -> list[Placement]:
    """Placements of chains, by their bounds, until no bound is below the best step.

    It stops sooner where bounds are so loose that it would take minutes, which is beyond 4 devices
    and 60 blocks.
    """
    placements: list[Placement] = []
    tried = set()
    below_s = math.inf
    for look in _LOOKS:
        left = _MOST_PASSES // (2 * problem.micro_batches * len(problem.loads))
        for segments, min_s in chains(problem, below_s, look):
            if min_s > below_s or left <= 0:
                break
            if segments in tried:
                continue
            tried.add(segments)
            for placement in placings_of(Cut(problem, segments)):
                below_s = min(below_s, _WITHIN * placement.step_time_s)
                left -= 1
                placements.append(placement)
    return placements


def _branched(problem: CutProblem) -> list[Cut]:
    """The most promising placings of branches on several devices, by the busiest device's work.

    The blocks before the branches form one segment, those after them another; a device may have
    several segments. Branches are not cut. One region of the graph is spread: that whose branches
    hide the most work behind each other, by the first device's times.
    """
    load = problem.loads[0]
    passes_s = []
    for forward_s, backward_s in zip(load.forward_s, load.backward_s, strict=True):
        passes_s.append(forward_s + backward_s)

    def hidden_s(arms: Arms) -> float:
        arms_s = [sum(passes_s[first : last + 1]) for first, last in arms]
        return sum(arms_s) - max(arms_s)

    regions = []
    for first, end in combinations(range(len(problem.graph.blocks) + 1), 2):
        arms = _arms(problem.graph, first, end)
        if len(arms) > 1 and len(problem.loads) ** (len(arms) + 2) <= _MOST_PLACINGS:
            regions.append(arms)
    if not regions:
        return []
    cuts = _placings(problem, max(regions, key=hidden_s))
    return sorted(cuts, key=_busiest_s)[:_MOST_BRANCHED]


def _arms(graph: Graph, first: int, end: int) -> Arms:
    """The runs of blocks first … end−1 between which no tensor of theirs passes."""
    starts = set(range(first, end + 1))
    for edge in graph.edges:
        if edge.source >= first:
            inside = [target for target in edge.targets if target < end]
            starts -= set(range(edge.source + 1, max(inside, default=0) + 1))
    return [(start, following - 1) for start, following in pairwise(sorted(starts))]


def _placings(problem: CutProblem, arms: Arms) -> Iterator[Cut]:
    """Each choice of devices, more than one for the branches, and any for what is around them."""
    first_branched, _ = arms[0]
    _, last_branched = arms[-1]
    before = (0, first_branched - 1)
    after = (last_branched + 1, len(problem.graph.blocks) - 1)
    runs = [(first, last) for first, last in [before, *arms, after] if first <= last]
    for placing in product(range(len(problem.loads)), repeat=len(runs)):
        device_of = dict(zip(runs, placing, strict=True))
        if len({device_of[arm] for arm in arms}) > 1:
            yield Cut(problem, tuple(Segment(*run, device_of[run]) for run in runs))


def _busiest_s(cut: Cut) -> float:
    work_s = [0.0] * len(cut.problem.loads)
    for segment, forward_s, backward_s in zip(
        cut.segments, cut.costs.forward_s, cut.costs.backward_s, strict=True
    ):
        work_s[segment.device] += forward_s + backward_s
    return max(work_s)


def placings_of(cut: Cut) -> Iterator[Placement]:
    """A cut in each order of tasks worth trying that fits; none if a device can't have a block."""
    if math.inf in cut.costs.forward_s:
        return
    problem = cut.problem
    for depths in _depths(cut):
        queues = []
        for number, depth in enumerate(depths):
            queues.append(tasks_of(number, problem.micro_batches, depth))
        timeline = simulate(cut, queues)
        orders: list[list[Task]] = [[] for _ in problem.loads]
        for timed in timeline.tasks:
            orders[timed.device].append(timed.task)
        peak_bytes, in_flight = zip(*map(cut.held, orders), strict=True)
        limits = [load.memory_bytes for load in problem.loads]
        if all(peak <= limit for peak, limit in zip(peak_bytes, limits, strict=True)):
            fixed_orders = tuple(map(tuple, orders))
            yield Placement(
                problem, cut.segments, fixed_orders, peak_bytes, in_flight, timeline
            )


def _depths(cut: Cut) -> Iterator[Sequence[int]]:
    """All depths up to `MOST_AHEAD` times the plain ones, as far as memory allows.

    So transfers hide behind other work. Of more than `_MOST_DEPTHS` it is those that are as much
    deeper everywhere. A segment must be as deep as each one behind it, or both wait for each other.
    """
    plain = depths_of(cut.segments, cut.links)

    def fits(number: int, depth: int) -> bool:
        held = min(depth + 1, cut.problem.micro_batches)
        needs = cut.costs.fixed_bytes[number] + held * cut.costs.live_bytes[number]
        return needs <= cut.problem.loads[cut.segments[number].device].memory_bytes

    ranges = []
    for number, minimum in enumerate(plain):
        deeper = range(minimum + 1, MOST_AHEAD * minimum + 1)
        ranges.append([minimum] + [depth for depth in deeper if fits(number, depth)])
    choices: Iterable[Sequence[int]] = product(*ranges)
    if math.prod(map(len, ranges)) > _MOST_DEPTHS:
        maximum = max(map(len, ranges))
        padded = [depths + depths[-1:] * (maximum - len(depths)) for depths in ranges]
        choices = zip(*padded, strict=True)
    for depths in choices:
        if all(depths[link.target] <= depths[link.source] for link in cut.links):
            yield depths
