"""Finds the best placing of a graph's blocks on devices, and their order of tasks, by simulating the step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from gpubalance.planning.pipeline.branches import branched
from gpubalance.planning.pipeline.chains import chains
from gpubalance.planning.pipeline.graph import Segment
from gpubalance.planning.pipeline.problem import Cut, Load, Problem
from gpubalance.planning.pipeline.schedule import MOST_AHEAD, depths_of, simulate, tasks_of
from gpubalance.planning.pipeline.timeline import Task, Timeline

# How many chains are looked at: few for a first good one, then all that may be better if they are not more than that.
_LOOKS = (5_000, 20_000)
_MOST_PASSES = 150_000  # that are simulated after each look: a few seconds of one core
_MOST_BRANCHED = 24
_MOST_DEPTHS = 24  # of one cut
# A step may be longer by this fraction to save devices or micro-batches in flight: less than measurement error.
_WITHIN = 1.001


class NoPlacementError(ValueError):
    """No placing fits. `block` is the number of a block that no device holds by itself, or None."""

    block: int | None = None


@dataclass(frozen=True)
class Placement(Cut):
    """A cut, each device's tasks in order, and the resulting step by the problem's times.

    `orders`, `peak_bytes` and `in_flight` cover all the problem's devices, empty and 0 for those without a segment. The
    step may be longer or shorter by the part `off`, None if nothing is known of that.
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
        stages = len({one.device for one in self.segments})
        return stages, len(self.segments), sum(self.in_flight), self.step_time_s


def place(problem: Problem) -> Placement:
    """The placing with the shortest simulated step. Raises NoPlacementError.

    It simulates chains of segments, and placings of branches. Of those within 0.1 % of the shortest step it chooses the
    one with the fewest devices, then the fewest segments, then the fewest micro-batches in flight.
    """
    found = list(_chained(problem))
    for cut in branched(problem, _MOST_BRANCHED):
        found += placings_of(cut)
    if not found:
        error = NoPlacementError("no cut fits")
        blocks = range(len(problem.graph.blocks))
        error.block = next((n for n in blocks if not any(_takes(load, n) for load in problem.loads)), None)
        raise error
    most_s = _WITHIN * min(placed.step_time_s for placed in found)
    return min((placed for placed in found if placed.step_time_s <= most_s), key=lambda placed: placed.cost)


def _chained(problem: Problem) -> Iterator[Placement]:
    """Placements of chains, by their bounds, until no bound is below the best step.

    It stops sooner where bounds are so loose that it would take minutes, which is beyond 4 devices and 60 blocks.
    """
    below_s, tried = math.inf, set[tuple[Segment, ...]]()
    for look in _LOOKS:
        left = _MOST_PASSES // (2 * problem.micro_batches * len(problem.loads))
        for segments, least_s in chains(problem, below_s, look):
            if least_s > below_s or left <= 0:
                break
            if segments not in tried:
                tried.add(segments)
                found = list(placings_of(Cut(problem, segments)))
                below_s = min([below_s, *(_WITHIN * placed.step_time_s for placed in found)])
                left -= len(found)
                yield from found


def placings_of(cut: Cut) -> Iterator[Placement]:
    """A cut in every order of tasks that is worth trying and fits; none if a block is kept off its device."""
    if math.inf in cut.costs.forward_s:
        return
    problem = cut.problem
    for depths in _depths(cut):
        queues = [tasks_of(number, problem.micro_batches, depth) for number, depth in enumerate(depths)]
        timeline = simulate(cut, queues)
        devices = range(len(problem.loads))
        orders = tuple(tuple(timed.task for timed in timeline.of(device)) for device in devices)
        peak_bytes, in_flight = zip(*map(cut.held, orders), strict=True)
        limits = [load.memory_bytes for load in problem.loads]
        if all(peak <= limit for limit, peak in zip(limits, peak_bytes, strict=True)):
            yield Placement(problem, cut.segments, orders, peak_bytes, in_flight, timeline)


def _depths(cut: Cut) -> Iterator[Sequence[int]]:
    """All depths up to the deepest; of more than `_MOST_DEPTHS` those that are as much deeper everywhere."""
    plain = depths_of(cut.segments, cut.links)
    ranges = [range(least, most + 1) for least, most in zip(plain, _deepest(cut, plain), strict=True)]
    if math.prod(map(len, ranges)) <= _MOST_DEPTHS:
        yield from (one for one in product(*ranges) if all(one[link.target] <= one[link.source] for link in cut.links))
    else:
        for more in range(max(map(len, ranges))):
            yield [one[min(more, len(one) - 1)] for one in ranges]


def _deepest(cut: Cut, plain: Sequence[int]) -> list[int]:
    """Up to `MOST_AHEAD` times the depth, as far as memory allows: a transfer and back then hides behind other work.

    A segment must be as deep as each one behind it, or both wait for each other.
    """

    def taken(number: int, depth: int) -> float:
        held = min(depth + 1, cut.problem.micro_batches)
        return cut.costs.fixed_bytes[number] + held * cut.costs.live_bytes[number]

    depths = []
    for number, segment in enumerate(cut.segments):
        others = [n for n, one in enumerate(cut.segments) if one.device == segment.device and n != number]
        left = cut.problem.loads[segment.device].memory_bytes - sum(taken(n, plain[n]) for n in others)
        depth = MOST_AHEAD * plain[number]
        while depth > plain[number] and taken(number, depth) > left:
            depth -= 1
        depths.append(depth)
    for source, target, _ in cut.links:
        depths[target] = min(depths[target], depths[source])
    return depths


def _takes(load: Load, block: int) -> bool:
    """Whether the device holds a block with one micro-batch and nothing else."""
    needs = load.fixed_bytes[block] + load.live_bytes[block]
    return math.isfinite(load.forward_s[block]) and needs <= load.memory_bytes
