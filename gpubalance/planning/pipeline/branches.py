"""Branches of a graph that do not need each other, so that several devices can run them at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product

from gpubalance.planning.pipeline.graph import Graph
from gpubalance.planning.pipeline.problem import Problem
from gpubalance.planning.pipeline.segments import Segment

_MOST_PLACINGS = 4096  # a region that has more of them is left alone


@dataclass(frozen=True)
class Region:
    """Branches next to each other in the blocks' order, as (first, last) blocks; no tensor passes between them."""

    arms: tuple[tuple[int, int], ...]

    @property
    def blocks(self) -> tuple[int, int]:
        """The first and the last block of the region."""
        return self.arms[0][0], self.arms[-1][1]


def branched(problem: Problem, count: int) -> list[tuple[Segment, ...]]:
    """The `count` most promising placings of branches on several devices, by the busiest device's work.

    The blocks before the branches form one segment, those after them another; a device may have several segments.
    Branches are not cut. One region of the graph is spread: that whose branches hide the most work behind each other,
    by the first device's times.
    """
    load, devices = problem.loads[0], len(problem.loads)
    passes_s = [sum(both) for both in zip(load.forward_s, load.backward_s, strict=True)]

    def hidden_s(region: Region) -> float:
        arms = [sum(passes_s[first : last + 1]) for first, last in region.arms]
        return sum(arms) - max(arms)

    found = (one for one in regions(problem.graph) if devices ** (len(one.arms) + 2) <= _MOST_PLACINGS)
    region = max(found, key=hidden_s, default=None)
    placings = _placings(problem, region) if region else ()
    return sorted(placings, key=lambda segments: _busiest_s(problem, segments))[:count]


def regions(graph: Graph) -> Iterator[Region]:
    """Every interval of blocks that falls apart into branches and has cuts around each of them."""
    ends = sorted({0, len(graph.blocks), *graph.cuts})
    for first in ends:
        for after in ends:
            arms = _arms(graph, first, after) if first < after else []
            if len(arms) > 1 and all(arm in ends for arm, _ in arms):
                yield Region(tuple(arms))


def _arms(graph: Graph, first: int, after: int) -> list[tuple[int, int]]:
    """The runs of blocks between which no tensor passes, with tensors from outside the interval left aside."""
    joined = [False] * len(graph.blocks)  # whether a block is joined with the one before it
    for edge in graph.edges:
        inside = [target for target in edge.targets if first <= target < after]
        for block in range(edge.source + 1, inside[-1] + 1) if inside and edge.source >= first else ():
            joined[block] = True
    starts = [first, *(block for block in range(first + 1, after) if not joined[block]), after]
    return [(begin, end - 1) for begin, end in pairwise(starts)]


def _placings(problem: Problem, region: Region) -> Iterator[tuple[Segment, ...]]:
    first, last = region.blocks
    runs = [(0, first - 1), *region.arms, (last + 1, len(problem.graph.blocks) - 1)]
    runs = [run for run in runs if run[0] <= run[1]]
    devices = range(len(problem.loads))
    for placing in product(devices, repeat=len(runs)):
        arms = {device for run, device in zip(runs, placing, strict=True) if run in region.arms}
        if len(arms) > 1 and len(set(placing)) >= problem.least_devices:
            yield tuple(Segment(*run, device) for run, device in zip(runs, placing, strict=True))


def _busiest_s(problem: Problem, segments: tuple[Segment, ...]) -> float:
    work_s = [0.0] * len(problem.loads)
    for segment in segments:
        load = problem.loads[segment.device]
        work_s[segment.device] += sum(load.forward_s[segment.blocks]) + sum(load.backward_s[segment.blocks])
    return max(work_s)
