"""Where a step's time goes: compute, wait and sync, from the stamps of some steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpubalance.numbers.stats import median


@dataclass(frozen=True)
class StepParts:
    """For each replica compute + wait + sync + input wait is the step time, in seconds, up to `excess_s`.

    `excess_s` is by how much the stamped steps' straggler took longer than a whole unstamped step: 0 unless
    measuring disturbs.
    """

    compute_s: tuple[float, ...]
    wait_s: tuple[float, ...]
    sync_s: float
    input_wait_s: float
    excess_s: float

    @property
    def imbalance(self) -> float:
        """max c / mean c: 1 is perfect."""
        return max(self.compute_s) * len(self.compute_s) / sum(self.compute_s)


def split_step(step_time_s: float, computes: Sequence[Sequence[float]], input_wait_s: float) -> StepParts:
    """Divides a step of `step_time_s` seconds by the compute times of some steps ([step][replica], at least one).

    Replica i computes cᵢ = median over steps; the barrier opens at m = median over steps of the slowest replica's
    time. Then wᵢ = m − cᵢ and s = T − input wait − m. (m, not max cᵢ: with noise another replica is the slowest each
    step, and that time is spent waiting.)
    """
    compute = tuple(median(times) for times in zip(*computes, strict=True))
    barrier = max(median([max(step) for step in computes]), *compute)
    left = step_time_s - input_wait_s - barrier
    return StepParts(
        compute_s=compute,
        wait_s=tuple(barrier - c for c in compute),
        sync_s=max(0.0, left),
        input_wait_s=input_wait_s,
        excess_s=max(0.0, -left),
    )
