"""Rare slow steps: how many there are, and what they add to a step time."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.numbers.stats import median

SLOW = 1.5  # times the median
_CLEARLY = 0.7  # of a step: timings that are longer by so much hold a slow one, where no single step is slow


def slow_steps(steps_s: Sequence[float]) -> int:
    """How many single steps took over 1.5 times their median."""
    slow_s = SLOW * median(steps_s) if steps_s else 0.0
    return sum(step_s > slow_s for step_s in steps_s)


def slow_time(timings_s: Sequence[float], size: int, steps_s: Sequence[float]) -> float:
    """Seconds by which rare slow steps lengthen the median of `timings_s`, each the mean of `size` steps.

    A median of single steps does not feel them. One of means does, and changes by a whole slow step over `size` when
    half of the timings hold one more: it can't be foretold. So what they add is all by which it is above the median of
    the single `steps_s`. It is 0 where nothing shows a slow step: none of `steps_s` is one, and `size` steps of a usual
    timing do not take most of a step longer than those of the shortest timing and than `size` usual single ones.
    """
    usual_s, timed_s = median(steps_s), median(timings_s)
    above_s = timed_s - max(usual_s, min(timings_s))
    if slow_steps(steps_s) or size * above_s > _CLEARLY * usual_s:
        return max(0.0, timed_s - usual_s)
    return 0.0
