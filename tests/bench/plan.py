"""How the time to find the best split grows with the number of unlike devices, with limits up to 10,000."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from random import Random

from gpubalance.numbers.stats import median
from gpubalance.planning.allocate import allocate
from gpubalance.planning.model import Curve, Line, monotone_curve
from gpubalance.planning.problem import Load, Problem

DEVICES = (100, 1_000, 10_000)
_TIMES = 3
_MOST = 10_000


def line(random: Random) -> Line:
    """A random device; speeds differ up to tenfold."""
    return Line(random.uniform(0.005, 0.05), random.uniform(1e-4, 1e-3), 0.0)


def through_zero(random: Random) -> Line:
    """A random device without fixed cost: without sync all deadlines are nearly equal, the hardest to tell apart."""
    return Line(0.0, random.uniform(1e-4, 1e-3), 0.0)


def curve(random: Random) -> Curve:
    """A random device with fourteen measured points, an octave apart, each off its line by some per cent."""
    exactly = line(random)
    sizes = [2**n for n in range(14)]
    return monotone_curve([(b, exactly.step_time_s(b) * random.uniform(0.97, 1.03)) for b in sizes])


def main() -> Iterator[str]:
    yield f"seconds of one allocate, median of {_TIMES}; limits up to {_MOST:,}; for {_shown(DEVICES)} devices"
    for name, problem in CASES.items():
        yield f"{name:42}" + "".join(f"{_seconds(problem, devices):>9.3f}" for devices in DEVICES)


def _seconds(problem: Callable[[int], Problem], devices: int) -> float:
    asked, taken = problem(devices), []
    for _ in range(_TIMES):
        began = time.perf_counter()
        allocate(asked)
        taken.append(time.perf_counter() - began)
    return median(taken)


def _loads(model: Callable[[Random], Line | Curve], devices: int) -> tuple[Load, ...]:
    random = Random(devices)
    return tuple(Load(model(random), random.randint(100, _MOST)) for _ in range(devices))


CASES: dict[str, Callable[[int], Problem]] = {
    "lines, free global batch": lambda n: Problem(_loads(line, n), sync_s=0.05),
    "lines, a global batch": lambda n: Problem(_loads(line, n), sync_s=0.05, global_batch=1_000 * n),
    "lines, a largest global batch": lambda n: Problem(_loads(line, n), sync_s=0.05, max_global_batch=500 * n),
    "curves, free global batch": lambda n: Problem(_loads(curve, n), sync_s=0.05),
    "curves, a global batch": lambda n: Problem(_loads(curve, n), sync_s=0.05, global_batch=1_000 * n),
    "lines through 0, no sync": lambda n: Problem(_loads(through_zero, n)),
    "lines, up to 8 micro-batches": lambda n: Problem(_loads(line, n), sync_s=0.05, micro_batches=8),
    "lines, the same, a global batch": lambda n: Problem(
        _loads(line, n), sync_s=0.05, global_batch=1_000 * n, micro_batches=8
    ),
}


def _shown(numbers: tuple[int, ...]) -> str:
    return ", ".join(f"{number:,}" for number in numbers)
