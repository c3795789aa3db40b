"""Branches of a graph that do not need each other, so that several devices can run them at the same time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from typing import TypeAlias

from gpubalance.planning.pipeline.graph import Graph, Segment
from gpubalance.planning.pipeline.problem import Cut, Problem

_MOST_PLACINGS = 4096  # a region that has more of them is left alone

# Branches next to each other in the blocks' order, as (first, last) blocks; no tensor passes between them.
Arms: TypeAlias = list[tuple[int, int]]


def branched(problem: Problem, count: int) -> list[Cut]:
    """The `count` most promising placings of branches on several devices, by the busiest device's work.

    The blocks before the branches form one segment, those after them another; a device may have several segments.
    Branches are not cut. One region of the graph is spread: that whose branches hide the most work behind each other,
    by the first device's times.
    """
    load, devices = problem.loads[0], len(problem.loads)
    passes_s = [sum(both) for both in zip(load.forward_s, load.backward_s, strict=True)]

    def hidden_s(arms: Arms) -> float:
        each = [sum(passes_s[first : last + 1]) for first, last in arms]
        return sum(each) - max(each)

    found = (arms for arms in _regions(problem.graph) if devices ** (len(arms) + 2) <= _MOST_PLACINGS)
    arms = max(found, key=hidden_s, default=None)
    return sorted(_placings(problem, arms), key=_busiest_s)[:count] if arms else []


def _regions(graph: Graph) -> Iterator[Arms]:
    """Every interval of blocks that falls apart into branches and has cuts around each of them."""
    ends = sorted({0, len(graph.blocks), *graph.cuts})
    for first in ends:
        for after in ends:
            arms = _arms(graph, first, after) if first < after else []
            if len(arms) > 1 and all(arm in ends for arm, _ in arms):
                yield arms


def _arms(graph: Graph, first: int, after: int) -> Arms:
    """The runs of blocks between which no tensor passes, with tensors from outside the interval left aside."""
    joined = [False] * len(graph.blocks)  # whether a block is joined with the one before it
    for edge in graph.edges:
        inside = [target for target in edge.targets if first <= target < after]
        for block in range(edge.source + 1, inside[-1] + 1) if inside and edge.source >= first else ():
            joined[block] = True
    starts = [first, *(block for block in range(first + 1, after) if not joined[block]), after]
    return [(begin, end - 1) for begin, end in pairwise(starts)]


def _placings(problem: Problem, arms: Arms) -> Iterator[Cut]:
    around = [(0, arms[0][0] - 1), *arms, (arms[-1][1] + 1, len(problem.graph.blocks) - 1)]
    runs = [run for run in around if run[0] <= run[1]]
    for placing in product(range(len(problem.loads)), repeat=len(runs)):
        segments = tuple(Segment(*run, device) for run, device in zip(runs, placing, strict=True))
        if _spread(segments, arms) > 1 and len(set(placing)) >= problem.least_devices:
            yield Cut(problem, segments)


def _spread(segments: Sequence[Segment], arms: Arms) -> int:
    """On how many devices the branches are."""
    return len({one.device for one in segments if one[:2] in arms})


def _busiest_s(cut: Cut) -> float:
    work_s, costs = [0.0] * len(cut.problem.loads), cut.costs
    for one, *passes_s in zip(cut.segments, costs.forward_s, costs.backward_s, strict=True):
        work_s[one.device] += sum(passes_s)
    return max(work_s)
