"""Where a step's time goes: compute, update, wait and sync, from the stamps of some steps; and rare
slow steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpubalance.numbers.stats import median

SLOW = 1.5  # times the median
# Of a step: timings longer by this much contain a slow step, even if no single step is slow.
_CLEARLY = 0.7


@dataclass(frozen=True)
class StepParts:
    """Each replica's compute + update + wait + sync + input wait − excess is the step time, in
    seconds.

    `excess_s` is how much longer the stamped steps' straggler took than a whole unstamped step: 0
    unless measuring slows the step down.
    """

    compute_s: tuple[float, ...]
    update_s: tuple[float, ...]
    wait_s: tuple[float, ...]
    sync_s: float
    input_wait_s: float
    excess_s: float

    @property
    def imbalance(self) -> float:
        """max (c + u) / mean (c + u): 1 is perfect."""
        busy = _sums(self.compute_s, self.update_s)
        return max(busy) * len(busy) / sum(busy)


def split_step(
    step_time_s: float,
    computes: Sequence[Sequence[float]],
    updates: Sequence[Sequence[float]],
    input_wait_s: float,
    middle: Callable[[Sequence[float]], float] = median,
) -> StepParts:
    """Divides a step of `step_time_s` seconds by the compute and update times of some steps
    ([step][replica]).

    At least one step is needed. Replica i computes cᵢ and updates uᵢ, the `middle` over steps; m is
    the middle of the slowest replica's sum of both. Then wᵢ = m − cᵢ − uᵢ and s = T − input wait −
    m. (m, not max (cᵢ + uᵢ): with noise another replica is the slowest in each step, and the others
    wait for it.) A single replica neither waits nor syncs: the rest of its step counts as compute.
    """
    compute, update = (
        tuple(map(middle, zip(*times, strict=True))) for times in (computes, updates)
    )
    if len(compute) == 1:
        compute = (max(*compute, step_time_s - input_wait_s - update[0]),)
    busy = _sums(compute, update)
    slowest = [max(_sums(*step)) for step in zip(computes, updates, strict=True)]
    barrier = busy[0] if len(busy) == 1 else max(middle(slowest), *busy)
    left = step_time_s - input_wait_s - barrier
    return StepParts(
        compute_s=compute,
        update_s=update,
        wait_s=tuple(barrier - own for own in busy),
        sync_s=max(0.0, left),
        input_wait_s=input_wait_s,
        excess_s=max(0.0, -left),
    )


def _sums(one: Sequence[float], other: Sequence[float]) -> tuple[float, ...]:
    return tuple(a + b for a, b in zip(one, other, strict=True))


def slow_steps(steps_s: Sequence[float]) -> int:
    """How many of the single steps took over 1.5 times their median."""
    slow_s = SLOW * median(steps_s) if steps_s else 0.0
    return sum(step_s > slow_s for step_s in steps_s)


def slow_time(timings_s: Sequence[float], size: int, steps_s: Sequence[float]) -> float:
    """Seconds by which rare slow steps lengthen the median of `timings_s`, each the mean of `size`
    steps.

    A median of single steps ignores them. A median of means does not: it rises by a whole slow step
    over `size` when half of the timings contain one more, which can't be predicted. So all by which
    it exceeds the median of the single `steps_s` is attributed to slow steps. It is 0 if nothing
    shows one: none of `steps_s` is slow, and `size` steps of a usual timing take at most 0.7 of a
    step longer than `size` steps of the shortest timing or `size` usual single ones, whichever is
    longer.
    """
    usual_s, timed_s = median(steps_s), median(timings_s)
    above_s = timed_s - max(usual_s, min(timings_s))
    if slow_steps(steps_s) or size * above_s > _CLEARLY * usual_s:
        return max(0.0, timed_s - usual_s)
    return 0.0
