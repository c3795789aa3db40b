"""Finds the shortest step of a small problem by brute force.

Every cut, every order of devices and every depth is simulated by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, permutations, product

import numpy as np

from gpubalance.planning.pipeline.problem import CutProblem

_AHEAD = 2  # times the segments behind one, that it may be ahead


def shortest(problem: CutProblem) -> float | None:
    """Seconds of the best step, with a device for each segment; None if nothing fits."""
    n = len(problem.graph.blocks)
    found = list[float]()
    for count in range(2, min(n, len(problem.loads)) + 1):
        for cuts in combinations(range(1, n), count - 1):
            ends = [0, *cuts, n]
            for devices in permutations(range(len(problem.loads)), count):
                found += _steps(problem, [*zip(devices, ends, ends[1:], strict=False)])
    return min(found, default=None)


def _steps(
    problem: CutProblem, parts: Sequence[tuple[int, int, int]]
) -> Iterator[float]:
    """Yields the step for each choice of depths that fits.

    It is for one order of devices and one choice of cuts.
    """
    count = problem.micro_batches
    loads = [problem.loads[device] for device, _, _ in parts]
    runs = [slice(first, after) for _, first, after in parts]

    def of_run(name: str) -> list[float]:
        parts = zip(loads, runs, strict=True)
        return [sum(getattr(load, name)[run]) for load, run in parts]

    forward_s, backward_s = of_run("forward_s"), of_run("backward_s")
    if max(forward_s) == float("inf"):
        return
    behind = [len(parts) - 1 - number for number in range(len(parts))]
    limits = np.array([load.memory_bytes for load in loads])
    fixed, live = of_run("fixed_bytes"), of_run("live_bytes")
    sent = _sent(problem, runs)
    for depths in product(*(range(least, _AHEAD * least + 1) for least in behind)):
        held = [min(depth + 1, count) for depth in depths]
        fits = (fixed + np.multiply(held, live) <= limits).all()
        if fits and list(depths) == sorted(depths, reverse=True):
            orders = [_order(count, depth) for depth in depths]
            yield _step_s(sent, forward_s, backward_s, of_run("update_s"), orders)


def _order(count: int, depth: int) -> list[tuple[bool, int]]:
    """(is a backward, micro-batch) of each task, in order.

    There are as many forwards as the depth, then one of each in turns, then the backwards.
    """
    ahead = min(depth, count)
    order = [(False, number) for number in range(ahead)]
    for number in range(count):
        if number + ahead < count:
            order.append((False, number + ahead))
        order.append((True, number))
    return order


def _sent(problem: CutProblem, runs: Sequence[slice]) -> dict[tuple[int, int], float]:
    """Seconds to send what each pair of segments has between them."""
    segment_of = []
    for number, run in enumerate(runs):
        segment_of += [number] * (run.stop - run.start)
    rate = problem.bytes_per_s or math.inf
    sent: dict[tuple[int, int], float] = {}
    for edge in problem.graph.edges:
        source = segment_of[edge.source]
        seconds = problem.micro_batch * edge.bytes_per_sample / rate
        for target in {segment_of[target] for target in edge.targets} - {source}:
            before_s = sent.get((source, target), problem.latency_s)
            sent[source, target] = before_s + seconds
    return sent


def _step_s(
    sent: dict[tuple[int, int], float],
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    update_s: Sequence[float],
    orders: Sequence[Sequence[tuple[bool, int]]],
) -> float:
    """Does whatever can be done next, on each device in its order, until all is done."""
    arrived: dict[tuple[int, int, bool, int], float] = {}  # by the two segments
    at = [0] * len(orders)
    free_s = [0.0] * len(orders)
    line_s = dict[tuple[int, int], float]()
    while any(place < len(order) for place, order in zip(at, orders, strict=True)):
        for own, order in enumerate(orders):
            if at[own] == len(order):
                continue
            is_back, number = order[at[own]]
            pairs = [pair for pair in sent if pair[not is_back] == own]
            needs = [(*pair, is_back, number) for pair in pairs]
            if not all(one in arrived for one in needs):
                continue
            begins = max([free_s[own], *(arrived[one] for one in needs)])
            ends = free_s[own] = begins + (backward_s if is_back else forward_s)[own]
            at[own] += 1
            for a, b in sent:
                if (b if is_back else a) == own:
                    line = (b, a) if is_back else (a, b)
                    line_s[line] = max(line_s.get(line, 0.0), ends) + sent[a, b]
                    arrived[a, b, is_back, number] = line_s[line]
    return max(free + update for free, update in zip(free_s, update_s, strict=True))
