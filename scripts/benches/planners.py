"""How long it takes to find the best split and the best cut of a model.

Also whether brute force finds a better cut.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

from gpubalance.numbers.stats import median
from gpubalance.planning.allocate import allocate
from gpubalance.planning.model import Curve, Line, monotone_curve
from gpubalance.planning.pipeline import problem as cut
from gpubalance.planning.pipeline.place import NoPlacementError, place
from gpubalance.planning.problem import Load, Problem
from gpubalance.planning.sync import Syncs
from tests.planning.pipeline.brute import shortest
from tests.planning.pipeline.problems import chain_graph, drawn

T = TypeVar("T")
_TIMES = 3
_DEVICES = (100, 1_000, 10_000)
_LIMIT = 10_000
_CUTS = ((40, 2), (40, 3), (40, 4), (40, 6), (40, 8), (60, 4))
_MICRO_BATCHES = (4, 16, 64)
_DRAWN = 1000
_MORE = 0.001


def _line(random: Random) -> Line:
    """A random device; speeds differ up to tenfold."""
    return Line(random.uniform(0.005, 0.05), random.uniform(1e-4, 1e-3), 0.0)


def _through_zero(random: Random) -> Line:
    """A random device without fixed cost.

    Without sync all deadlines are nearly equal, the hardest to tell apart.
    """
    return Line(0.0, random.uniform(1e-4, 1e-3), 0.0)


def _curve(random: Random) -> Curve:
    """A random device with fourteen points an octave apart, each off its line by some per cent."""
    exactly = _line(random)
    sizes = [2**n for n in range(14)]
    return monotone_curve(
        [(b, exactly.step_time_s(b) * random.uniform(0.97, 1.03)) for b in sizes]
    )


# Kinds of devices, and what is asked of so many.
_CASES: dict[str, tuple[Any, Callable[[int], dict[str, Any]]]] = {
    "lines, free global batch": (_line, lambda _: {}),
    "lines, a global batch": (_line, lambda n: {"global_batch": 1_000 * n}),
    "lines, a largest global batch": (_line, lambda n: {"max_global_batch": 500 * n}),
    "curves, free global batch": (_curve, lambda _: {}),
    "curves, a global batch": (_curve, lambda n: {"global_batch": 1_000 * n}),
    "lines through 0, no sync": (_through_zero, lambda _: {"sync": Syncs()}),
    "lines, up to 8 micro-batches": (_line, lambda _: {"micro_batches": 8}),
    "lines, the same, a global batch": (
        _line,
        lambda n: {"global_batch": 1_000 * n, "micro_batches": 8},
    ),
}


def plan() -> Iterator[str]:
    devices = ", ".join(f"{count:,}" for count in _DEVICES)
    yield (
        f"seconds of one allocate, median of {_TIMES}; limits up to {_LIMIT:,}; for {devices} "
        "devices"
    )
    for name in _CASES:
        taken = [
            _seconds(allocate, [_split(name, count)] * _TIMES) for count in _DEVICES
        ]
        yield f"{name:42}" + "".join(f"{one:>9.3f}" for one in taken)


def _split(name: str, devices: int) -> Problem:
    random, (device, of) = Random(devices), _CASES[name]
    loads = tuple(
        Load(device(random), random.randint(100, _LIMIT)) for _ in range(devices)
    )
    return Problem(loads, **{"sync": Syncs(otherwise_s=0.05), **of(devices)})


def _seconds(find: Callable[[T], object], problems: Sequence[T]) -> float:
    """The median over the problems, of one core."""
    taken = []
    for problem in problems:
        began = time.process_time()
        find(problem)
        taken.append(time.process_time() - began)
    return median(taken)


def cuts() -> Iterator[str]:
    yield f"seconds of one core to find the best cut, median of {_TIMES}"
    yield "blocks devices  " + "  ".join(f"K={count:<3}" for count in _MICRO_BATCHES)
    for blocks, devices in _CUTS:
        asked = [
            [_cut(blocks, devices, count, seed) for seed in range(_TIMES)]
            for count in _MICRO_BATCHES
        ]
        yield f"{blocks:6} {devices:7}  " + "  ".join(
            f"{_seconds(place, of):5.2f}" for of in asked
        )
    worse = [_worse(seed) for seed in range(_DRAWN)]
    over = sum(one > _MORE for one in worse)
    yield (
        f"of {_DRAWN} problems of up to 7 blocks, 3 devices and K 24, {over} have a step over "
        f"{_MORE:.1%} above"
    )
    yield f"the best of all cuts and orders, simulated; the worst is {max(worse):.2%} above"


def _cut(blocks: int, devices: int, micro_batches: int, seed: int) -> cut.CutProblem:
    """Difference blocks on devices whose speeds differ up to fourfold.

    The devices' memory together is scarce.
    """
    random = Random(seed)
    edges = tuple(
        cut.Edge(n, (n + 1,), random.randrange(10**4)) for n in range(blocks - 1)
    )
    base_s = [random.uniform(0.5, 2) * 1e-3 for _ in range(blocks)]
    fixed, live = (
        tuple(random.uniform(low, 5 * low) for _ in range(blocks)) for low in (1.0, 0.5)
    )
    loads = []
    for number in range(devices):
        slower = random.uniform(0.5, 2)
        memory = (3.0 + 0.75 * number) * blocks
        times_s = tuple(slower * one for one in base_s)
        backward_s = tuple(2 * one for one in times_s)
        loads.append(
            cut.BlockLoad(times_s, backward_s, (0.0,) * blocks, fixed, live, memory)
        )
    graph = replace(chain_graph(blocks), edges=edges)
    return cut.CutProblem(
        graph, tuple(loads), 8, micro_batches, latency_s=1e-4, bytes_per_s=1e9
    )


def _worse(seed: int) -> float:
    """By how much the step is above the shortest one; infinite if only one of the two finds any."""
    asked = drawn(seed, most_devices=3)
    best_s = shortest(asked)
    try:
        found_s = place(asked).step_time_s
    except NoPlacementError:
        return 0.0 if best_s is None else math.inf
    return math.inf if best_s is None else found_s / best_s - 1
