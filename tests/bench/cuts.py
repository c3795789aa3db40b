"""How long it takes to find the best cut of a model, and whether brute force finds a better one."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from random import Random

from gpubalance.numbers.stats import median
from gpubalance.planning.pipeline.place import NoPlacementError, place
from gpubalance.planning.pipeline.problem import Block, Edge, Graph, Load, Problem
from tests.planning.pipeline.brute import shortest
from tests.planning.pipeline.problems import drawn

DEVICES = (2, 3, 4, 6, 8)
MICRO_BATCHES = (4, 16, 64)
_BLOCKS, _TIMES, _DRAWN, _MORE = (40, 60), 3, 1000, 0.001


def problem(blocks: int, devices: int, micro_batches: int, seed: int) -> Problem:
    """Unlike blocks on devices whose speeds differ up to fourfold and whose memory together is scarce."""
    random = Random(seed)
    edges = tuple(Edge(n, (n + 1,), random.randrange(10**4)) for n in range(blocks - 1))
    named = tuple(Block(str(n), 1, 0, 0, 1 / blocks) for n in range(blocks))
    base_s = [random.uniform(0.5, 2) * 1e-3 for _ in range(blocks)]
    fixed, live = (tuple(random.uniform(low, 5 * low) for _ in range(blocks)) for low in (1.0, 0.5))
    loads = []
    for number in range(devices):
        slower, memory = random.uniform(0.5, 2), (3.0 + 0.75 * number) * blocks
        times_s = tuple(slower * one for one in base_s)
        backward_s = tuple(2 * one for one in times_s)
        loads.append(Load(times_s, backward_s, (0.0,) * blocks, fixed, live, memory))
    graph = Graph(named, edges)
    return Problem(graph, tuple(loads), 8, micro_batches, latency_s=1e-4, bytes_per_s=1e9)


def main() -> Iterator[str]:
    yield f"seconds of one core to find the best cut, median of {_TIMES}"
    yield "blocks devices  " + "  ".join(f"K={count:<3}" for count in MICRO_BATCHES)
    for blocks, devices in [*((_BLOCKS[0], devices) for devices in DEVICES), (_BLOCKS[1], 4)]:
        taken = [
            median([_seconds(problem(blocks, devices, count, seed)) for seed in range(_TIMES)])
            for count in MICRO_BATCHES
        ]
        yield f"{blocks:6} {devices:7}  " + "  ".join(f"{one:5.2f}" for one in taken)
    worse = [_worse(seed) for seed in range(_DRAWN)]
    over = sum(one > _MORE for one in worse)
    yield (
        f"of {_DRAWN} drawn problems of up to 7 blocks and 3 devices, K from 1 to 24, {over} have a step over "
        f"{_MORE:.1%} above the best of all cuts and orders, simulated; the worst is {max(worse):.2%} above"
    )


def _seconds(asked: Problem) -> float:
    began = time.process_time()
    place(asked)
    return time.process_time() - began


def _worse(seed: int) -> float:
    """By how much the step is above the shortest one; infinite if only one of the two finds any."""
    asked = drawn(seed, most_devices=3)
    best_s = shortest(asked)
    try:
        found_s = place(asked).step_time_s
    except NoPlacementError:
        return 0.0 if best_s is None else math.inf
    return math.inf if best_s is None else found_s / best_s - 1
