"""Rare slow steps: how many there are, and what they add to a step time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpubalance.numbers.stats import median

_SLOW = 2.0  # times the median
_GROUPS = 400


def slow_steps(steps_s: Sequence[float]) -> int:
    """How many single steps took over twice their median."""
    return sum(step_s > _SLOW * median(steps_s) for step_s in steps_s) if steps_s else 0


def slow_time(timings_s: Sequence[float], size: int, steps_s: Sequence[float]) -> float:
    """Seconds by which rare slow steps lengthen the median of `timings_s`, each the mean of `size` steps.

    A median of single steps does not feel them, one of means of many steps does: beside compute, which is of single
    steps, they would look like sync. So the single ones are drawn in groups of that size, and the median of the groups'
    means is compared with their own. It is at most by what the median timing is above the shortest, and 0 where none of
    `steps_s` is slow.
    """
    if size == 1 or not slow_steps(steps_s):
        return 0.0
    groups = np.random.default_rng(0).choice(steps_s, (_GROUPS, size))
    longer_s = float(np.median(groups.mean(axis=1))) - median(steps_s)
    return max(0.0, min(longer_s, median(timings_s) - min(timings_s)))
