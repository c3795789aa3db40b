"""How long it takes to find the best cut of a model, and whether brute force finds the same."""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random

from gpubalance.numbers.stats import median
from gpubalance.planning.pipeline.graph import Block, Edge, Graph
from gpubalance.planning.pipeline.partition import chains
from gpubalance.planning.pipeline.place import place
from gpubalance.planning.pipeline.problem import Load, Problem
from tests.planning.pipeline.problems import drawn
from tests.planning.pipeline.test_partition import brute

DEVICES = (2, 3, 4, 6, 8)
_BLOCKS, _TIMES, _DRAWN = 40, 3, 2000


def problem(devices: int, seed: int = 0) -> Problem:
    """Forty unlike blocks on devices whose speeds differ up to fourfold and whose memory together is scarce."""
    random = Random(seed)
    edges = tuple(Edge(n, (n + 1,), random.randrange(10**4)) for n in range(_BLOCKS - 1))
    blocks = tuple(Block(str(n), 1, 0, 0, 1 / _BLOCKS) for n in range(_BLOCKS))
    base_s = [random.uniform(0.5, 2) * 1e-3 for _ in range(_BLOCKS)]
    fixed, live = ([random.uniform(low, 5 * low) for _ in range(_BLOCKS)] for low in (1.0, 0.5))
    loads = []
    for number in range(devices):
        slower = random.uniform(0.5, 2)
        times_s = tuple(slower * one for one in base_s)
        backward_s = tuple(2 * one for one in times_s)
        loads.append(Load(times_s, backward_s, (0.0,) * _BLOCKS, tuple(fixed), tuple(live), 120.0 + 30 * number))
    return Problem(
        Graph(blocks, edges, frozenset(range(1, _BLOCKS))), tuple(loads), 8, 16, latency_s=1e-4, bytes_per_s=1e9
    )


def main() -> Iterator[str]:
    yield f"{_BLOCKS} blocks: seconds of one core to find the best cut and simulate the candidates, median of {_TIMES}"
    for devices in DEVICES:
        taken = [_seconds(problem(devices, seed)) for seed in range(_TIMES)]
        yield f"{devices} devices {median(taken):9.2f}"
    unequal = sum(not _equal(drawn(seed)) for seed in range(_DRAWN))
    yield f"of {_DRAWN} drawn problems of up to 7 blocks and 4 devices {unequal} differ from brute force"


def _seconds(asked: Problem) -> float:
    began = time.process_time()
    place(asked)
    return time.process_time() - began


def _equal(asked: Problem) -> bool:
    best, expected = min((chain.step_time_s for chain in chains(asked)), default=None), brute(asked)
    if best is None or expected is None:
        return best is expected
    return abs(best - expected) <= 1e-9 * expected
