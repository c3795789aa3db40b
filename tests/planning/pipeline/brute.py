"""Finds the shortest step of a small problem by brute force.

Every cut, every order of devices and every depth is simulated by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, permutations, product

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
    forward_s = [
        sum(load.forward_s[run]) for load, run in zip(loads, runs, strict=True)
    ]
    if max(forward_s) == float("inf"):
        return
    backward_s = [
        sum(load.backward_s[run]) for load, run in zip(loads, runs, strict=True)
    ]
    update_s = [sum(load.update_s[run]) for load, run in zip(loads, runs, strict=True)]
    behind = [len(parts) - 1 - number for number in range(len(parts))]
    for depths in product(
        *(range(minimum, _AHEAD * minimum + 1) for minimum in behind)
    ):
        held = [min(depth + 1, count) for depth in depths]
        needs = [
            sum(load.fixed_bytes[run]) + maximum * sum(load.live_bytes[run])
            for load, run, maximum in zip(loads, runs, held, strict=True)
        ]
        limits = [load.memory_bytes for load in loads]
        fits = all(need <= limit for need, limit in zip(needs, limits, strict=True))
        if fits and list(depths) == sorted(depths, reverse=True):
            yield _step_s(
                _sent(problem, runs),
                forward_s,
                backward_s,
                update_s,
                [_order(count, d) for d in depths],
            )


def _order(count: int, depth: int) -> list[tuple[bool, int]]:
    """(is a backward, micro-batch) of each task, in order.

    There are as many forwards as the depth, then one of each in turns, then the backwards.
    """
    ahead = min(depth, count)
    turns = [
        one
        for n in range(count)
        for one in ([(False, n + ahead)] if n + ahead < count else []) + [(True, n)]
    ]
    return [(False, n) for n in range(ahead)] + turns


def _sent(problem: CutProblem, runs: Sequence[slice]) -> dict[tuple[int, int], float]:
    """Seconds to send what each pair of segments has between them."""
    sent: dict[tuple[int, int], int] = {}
    for edge in problem.graph.edges:
        (source,) = (
            n for n, run in enumerate(runs) if run.start <= edge.source < run.stop
        )
        for n, run in enumerate(runs):
            if n != source and any(
                run.start <= target < run.stop for target in edge.targets
            ):
                sent[source, n] = (
                    sent.get((source, n), 0)
                    + problem.micro_batch * edge.bytes_per_sample
                )
    rate = problem.bytes_per_s
    return {
        pair: problem.latency_s + (size / rate if rate else 0.0)
        for pair, size in sent.items()
    }


def _step_s(
    sent: dict[tuple[int, int], float],
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    update_s: Sequence[float],
    orders: Sequence[Sequence[tuple[bool, int]]],
) -> float:
    """Does whatever can be done next, on each device in its order, until all is done."""
    done: dict[tuple[int, bool, int], float] = {}
    arrived: dict[tuple[int, int, bool, int], float] = {}  # by the two segments
    at = [0] * len(orders)
    free_s = [0.0] * len(orders)
    line_s = dict[tuple[int, int], float]()
    while any(place < len(order) for place, order in zip(at, orders, strict=True)):
        for own, order in enumerate(orders):
            if at[own] == len(order):
                continue
            is_back, number = order[at[own]]
            needs = [
                (a, b, is_back, number) for a, b in sent if (a if is_back else b) == own
            ]
            if not all(one in arrived for one in needs):
                continue
            begins = max([free_s[own], *(arrived[one] for one in needs)])
            ends = free_s[own] = done[own, is_back, number] = (
                begins + (backward_s if is_back else forward_s)[own]
            )
            at[own] += 1
            for a, b in sent:
                if (b if is_back else a) == own:
                    line = (b, a) if is_back else (a, b)
                    line_s[line] = max(line_s.get(line, 0.0), ends) + sent[a, b]
                    arrived[a, b, is_back, number] = line_s[line]
    return max(free + update for free, update in zip(free_s, update_s, strict=True))
