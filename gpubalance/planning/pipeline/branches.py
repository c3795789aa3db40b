"""Branches of a graph that do not need each other, which may be on several devices at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product

from gpubalance.planning.pipeline.graph import Graph
from gpubalance.planning.pipeline.problem import Problem
from gpubalance.planning.pipeline.segments import Segment

# Of more ways to place branches than are worth simulating those with the least work on any device.
_MOST_REGIONS, _MOST_PLACINGS = 3, 4096


@dataclass(frozen=True)
class Region:
    """Branches that lie next to each other in the blocks' order: of [first, last] blocks each, without a tensor between
    two of them.
    """

    arms: tuple[tuple[int, int], ...]

    @property
    def blocks(self) -> tuple[int, int]:
        """Its first and its last."""
        return self.arms[0][0], self.arms[-1][1]


def branched(problem: Problem, count: int) -> list[tuple[Segment, ...]]:
    """The `count` most promising placings of branches on several devices, by the busiest device's work.

    What lies before the branches is one segment, what lies behind them another; a device may have several segments.
    Branches are not cut, and only one region of them is looked at each time.
    """
    found = [segments for region in _best_regions(problem) for segments in _placings(problem, region)]
    return sorted(found, key=lambda segments: _busiest_s(problem, segments))[:count]


def regions(graph: Graph) -> Iterator[Region]:
    """Every interval of blocks that falls apart into branches, with cuts around each."""
    ends = sorted({0, len(graph.blocks), *graph.cuts})
    for first in ends:
        for after in ends:
            arms = _arms(graph, first, after) if first < after else []
            if len(arms) > 1 and all(arm in ends for arm, _ in arms):
                yield Region(tuple(arms))


def _arms(graph: Graph, first: int, after: int) -> list[tuple[int, int]]:
    """The runs of blocks between which no tensor passes, as long as the interval is cut off from the rest."""
    joined = [False] * len(graph.blocks)  # with the block before
    for edge in graph.edges:
        inside = [target for target in edge.targets if first <= target < after]
        for block in range(edge.source + 1, inside[-1] + 1) if inside and edge.source >= first else ():
            joined[block] = True
    starts = [first, *(block for block in range(first + 1, after) if not joined[block]), after]
    return [(begin, end - 1) for begin, end in pairwise(starts)]


def _best_regions(problem: Problem) -> list[Region]:
    """Those whose branches hide the most behind each other. One of two devices may be enough."""
    block_s = [sum(pair) for pair in zip(problem.loads[0].forward_s, problem.loads[0].backward_s, strict=True)]

    def hidden_s(region: Region) -> float:
        arms = [sum(block_s[first : last + 1]) for first, last in region.arms]
        return sum(arms) - max(arms)

    return sorted(regions(problem.graph), key=hidden_s, reverse=True)[:_MOST_REGIONS]


def _placings(problem: Problem, region: Region) -> Iterator[tuple[Segment, ...]]:
    first, last = region.blocks
    runs = [(0, first - 1), *region.arms, (last + 1, len(problem.graph.blocks) - 1)]
    runs = [run for run in runs if run[0] <= run[1]]
    devices = range(len(problem.loads))
    if len(devices) ** len(runs) > _MOST_PLACINGS:
        return
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
