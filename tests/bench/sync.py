"""Whether a run reports its true sync in spite of rare slow steps, on random timings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from gpubalance.jobs.measure.length import TIMING_S
from gpubalance.jobs.measure.series import STAMPED_PART, STAMPED_STEPS
from gpubalance.results.run import Measurement
from gpubalance.results.timing import Timing
from tests.bench.wanted import Share
from tests.jobs.drawn import timings_of

SYNC = 0.1  # of a step's compute
WITHIN = 0.03  # of a step's compute, too
_RUNS = 300


@dataclass(frozen=True)
class Machine:
    """A step computes `compute_s` seconds, with 2 % noise; a part `slow` of the steps takes `factor` times as long."""

    compute_s: float
    slow: float
    factor: float = 3.0
    noise: float = 0.02

    def measured(self, seed: int, windows: int = 2, timings: int = 5) -> Measurement:
        """The measurement of random windows, each with its stamped steps; times are in parts of a step's compute."""
        source = np.random.default_rng(seed)
        size = max(1, round(TIMING_S / (self.compute_s * (1 + SYNC))))
        stamped = max(STAMPED_STEPS, round(STAMPED_PART * timings * size / 2))  # an unstamped step is before each
        return timings_of(
            [_timing(self._computes(source, size)) for _ in range(windows * timings)],
            [_stamped(c) for c in self._computes(source, windows * stamped).tolist()],
        ).measurement()

    def _computes(self, source: np.random.Generator, count: int) -> np.ndarray:
        noisy = 1 + self.noise * source.standard_normal(count)
        return noisy * np.where(source.random(count) < self.slow, self.factor, 1.0)

    def right(self, runs: int, windows: int = 2, timings: int = 5) -> tuple[Share, float, float]:
        """The share of runs that show a sync within 0.03 of the true one, and the least and the most sync shown."""
        found = [self.measured(seed, windows, timings).sync_s for seed in range(runs)]
        return Share(sum(abs(sync - SYNC) <= WITHIN for sync in found), runs), min(found), max(found)

    def __str__(self) -> str:
        slow = f"{self.slow:.0%} take {self.factor:g} times as long" if self.slow else "none slow"
        return f"steps of {1000 * self.compute_s:g} ms, {slow}"


MACHINES = tuple(
    Machine(*one)
    for one in (*product((0.02, 0.1, 0.6), (0.0,), (1.0,)), *product((0.02, 0.1, 0.6), (0.03, 0.1), (2.0, 3.0, 4.0)))
)


def main() -> Iterator[str]:
    shown = f"{SYNC - WITHIN:g} to {SYNC + WITHIN:g}"
    yield f"of a sync that is {SYNC} of the compute, how many runs show {shown}; the least and the most"
    for machine, (windows, timings) in product(MACHINES, ((2, 5), (3, 18))):
        share, least, most = machine.right(_RUNS, windows, timings)
        yield f"{machine}, {windows * timings} timings: {share.part:.1%}; {least:.3f} to {most:.3f}"


def _timing(computes: np.ndarray) -> Timing:
    size = len(computes)
    return Timing(steps=size, seconds=float(computes.sum()) + size * SYNC, input_wait_s=0.0)


def _stamped(compute: float) -> Timing:
    step = compute + SYNC
    parts = {"compute_s": (compute, compute), "update_s": (0.0, 0.0), "step_s": step}
    return Timing(steps=1, seconds=step, input_wait_s=0.0, **parts)
