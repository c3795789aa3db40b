"""Rare slow steps: their number, and how much they add to a step time."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.numbers.stats import median

SLOW = 1.5  # times the median
_CLEARLY = 0.7  # of a step: timings longer by this much contain a slow step, even if no single step is slow


def slow_steps(steps_s: Sequence[float]) -> int:
    """How many of the single steps took over 1.5 times their median."""
    slow_s = SLOW * median(steps_s) if steps_s else 0.0
    return sum(step_s > slow_s for step_s in steps_s)


def slow_time(timings_s: Sequence[float], size: int, steps_s: Sequence[float]) -> float:
    """Seconds by which rare slow steps lengthen the median of `timings_s`, each the mean of `size` steps.

    A median of single steps ignores them. A median of means does not: it rises by a whole slow step over `size` when
    half of the timings contain one more, which can't be predicted. So all by which it exceeds the median of the single
    `steps_s` is attributed to slow steps. It is 0 if nothing shows one: none of `steps_s` is slow, and `size` steps of
    a usual timing take at most 0.7 of a step longer than `size` steps of the shortest timing or `size` usual single
    ones, whichever is longer.
    """
    usual_s, timed_s = median(steps_s), median(timings_s)
    above_s = timed_s - max(usual_s, min(timings_s))
    if slow_steps(steps_s) or size * above_s > _CLEARLY * usual_s:
        return max(0.0, timed_s - usual_s)
    return 0.0
