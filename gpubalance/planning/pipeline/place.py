"""Finds the best placing of a graph's blocks on devices, and their order of tasks, by simulating
the step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import TypeAlias

from gpubalance.planning.pipeline.chains import chains
from gpubalance.planning.pipeline.problem import Cut, CutProblem, Graph, Segment
from gpubalance.planning.pipeline.schedule import MOST_AHEAD, depths_of, simulate, tasks_of
from gpubalance.planning.pipeline.timeline import Task, Timeline

# How many chains are looked at: few for a first good one, then all that may be better if they are
# not more than that.
_LOOKS = (5_000, 20_000)
_MOST_PASSES = 150_000  # that are simulated after each look: a few seconds of one core
_MOST_BRANCHED = 24
_MOST_PLACINGS = 4096  # a region of branches that has more of them is left alone
_MOST_DEPTHS = 24  # of one cut
# A step may be longer by this fraction to save devices or micro-batches in flight: less than
# measurement error.
_WITHIN = 1.001


# Branches next to each other in the blocks' order, as (first, last) blocks; no tensor passes
# between them.
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
        stages = len({one.device for one in self.segments})
        return stages, len(self.segments), sum(self.in_flight), self.step_time_s


def place(problem: CutProblem) -> Placement:
    """The placing on two or more devices with the shortest simulated step. Raises NoPlacementError.

    It simulates chains of segments, and placings of branches. Of those within 0.1 % of the shortest
    step it chooses the one with the fewest devices, then the fewest segments, then the fewest
    micro-batches in flight.
    """
    found = [
        *_chained(problem),
        *(placed for cut in _branched(problem) for placed in placings_of(cut)),
    ]
    if not found:
        error = NoPlacementError("no cut fits")
        blocks = range(len(problem.graph.blocks))
        error.block = next(
            (n for n in blocks if not any(load.holds(n) for load in problem.loads)), None
        )
        raise error
    most_s = _WITHIN * min(placed.step_time_s for placed in found)
    return min(
        (placed for placed in found if placed.step_time_s <= most_s), key=lambda placed: placed.cost
    )


def _chained(problem: CutProblem) -> Iterator[Placement]:
    """Placements of chains, by their bounds, until no bound is below the best step.

    It stops sooner where bounds are so loose that it would take minutes, which is beyond 4 devices
    and 60 blocks.
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


def _branched(problem: CutProblem) -> list[Cut]:
    """The most promising placings of branches on several devices, by the busiest device's work.

    The blocks before the branches form one segment, those after them another; a device may have
    several segments. Branches are not cut. One region of the graph is spread: that whose branches
    hide the most work behind each other, by the first device's times.
    """
    load, devices = problem.loads[0], len(problem.loads)
    passes_s = [sum(both) for both in zip(load.forward_s, load.backward_s, strict=True)]

    def hidden_s(arms: Arms) -> float:
        each = [sum(passes_s[first : last + 1]) for first, last in arms]
        return sum(each) - max(each)

    ends = range(len(problem.graph.blocks) + 1)
    regions = (_arms(problem.graph, first, after) for first in ends for after in ends[first + 1 :])
    few = (
        arms for arms in regions if len(arms) > 1 and devices ** (len(arms) + 2) <= _MOST_PLACINGS
    )
    arms = max(few, key=hidden_s, default=None)
    return sorted(_placings(problem, arms), key=_busiest_s)[:_MOST_BRANCHED] if arms else []


def _arms(graph: Graph, first: int, after: int) -> Arms:
    """The runs of blocks between which no tensor passes, with tensors from outside the interval
    left aside.
    """
    joined = [False] * len(graph.blocks)  # whether a block is joined with the one before it
    for edge in graph.edges:
        inside = [target for target in edge.targets if first <= target < after]
        for block in (
            range(edge.source + 1, inside[-1] + 1) if inside and edge.source >= first else ()
        ):
            joined[block] = True
    starts = [first, *(block for block in range(first + 1, after) if not joined[block]), after]
    return [(begin, end - 1) for begin, end in pairwise(starts)]


def _placings(problem: CutProblem, arms: Arms) -> Iterator[Cut]:
    """Each choice of devices for the branches, on more than one, and for what is before and after
    them.
    """
    around = [(0, arms[0][0] - 1), *arms, (arms[-1][1] + 1, len(problem.graph.blocks) - 1)]
    runs = [run for run in around if run[0] <= run[1]]
    for placing in product(range(len(problem.loads)), repeat=len(runs)):
        segments = tuple(Segment(*run, device) for run, device in zip(runs, placing, strict=True))
        if len({one.device for one in segments if one[:2] in arms}) > 1:
            yield Cut(problem, segments)


def _busiest_s(cut: Cut) -> float:
    work_s = [0.0] * len(cut.problem.loads)
    for one, *passes_s in zip(cut.segments, cut.costs.forward_s, cut.costs.backward_s, strict=True):
        work_s[one.device] += sum(passes_s)
    return max(work_s)


def placings_of(cut: Cut) -> Iterator[Placement]:
    """A cut in every order of tasks that is worth trying and fits; none if a block is kept off its
    device.
    """
    if math.inf in cut.costs.forward_s:
        return
    problem = cut.problem
    for depths in _depths(cut):
        queues = [
            tasks_of(number, problem.micro_batches, depth) for number, depth in enumerate(depths)
        ]
        timeline = simulate(cut, queues)
        numbers = range(len(problem.loads))
        orders = tuple(
            tuple(one.task for one in timeline.tasks if one.device == device) for device in numbers
        )
        peak_bytes, in_flight = zip(*map(cut.held, orders), strict=True)
        if all(
            peak <= load.memory_bytes for load, peak in zip(problem.loads, peak_bytes, strict=True)
        ):
            yield Placement(problem, cut.segments, orders, peak_bytes, in_flight, timeline)


def _depths(cut: Cut) -> Iterator[Sequence[int]]:
    """All depths up to `MOST_AHEAD` times the plain ones, as far as memory allows: transfers hide
    behind other work.

    Of more than `_MOST_DEPTHS` it is those that are as much deeper everywhere. A segment must be as
    deep as each one behind it, or both wait for each other.
    """
    plain = depths_of(cut.segments, cut.links)

    def fits(number: int, depth: int) -> bool:
        held = min(depth + 1, cut.problem.micro_batches)
        needs = cut.costs.fixed_bytes[number] + held * cut.costs.live_bytes[number]
        return needs <= cut.problem.loads[cut.segments[number].device].memory_bytes

    ranges = [
        [
            least,
            *(
                deeper
                for deeper in range(least + 1, MOST_AHEAD * least + 1)
                if fits(number, deeper)
            ),
        ]
        for number, least in enumerate(plain)
    ]
    choices: Iterable[Sequence[int]] = product(*ranges)
    if math.prod(map(len, ranges)) > _MOST_DEPTHS:
        choices = (
            [one[min(more, len(one) - 1)] for one in ranges]
            for more in range(max(map(len, ranges)))
        )
    return (
        one for one in choices if all(one[link.target] <= one[link.source] for link in cut.links)
    )
