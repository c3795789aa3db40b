"""Statistics of step times. Samples of one run are not independent: their intervals come from batch means."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

# Two-sided 95 % quantiles of Student's t for 1, 2, … degrees of freedom.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093,
)  # fmt: skip
_MOST_BATCHES = len(_T95) + 1
_TREND_Z = 2.576  # 99 %
_TREND_MATTERS = 0.01
_SHIFT_Z = 3.5  # at the best of all places to cut, so stricter than one test
_SHIFT_MATTERS = 0.03


def median(samples: Sequence[float]) -> float:
    """The median; of an even number of samples the mean of the two in the middle."""
    return statistics.median(samples)


def mad(samples: Sequence[float]) -> float:
    """Median absolute deviation from the median, unscaled."""
    middle = median(samples)
    return median([abs(sample - middle) for sample in samples])


class Spread(NamedTuple):
    """The standard error of a median, in the samples' unit, and its degrees of freedom."""

    error: float
    freedom: float


def t95(freedom: float) -> float:
    """Two-sided 95 % quantile of Student's t, for at least one degree of freedom; never less than it is.

    Straight between whole degrees, and from 19 on that of 19.
    """
    whole = min(len(_T95) - 1, int(freedom))
    low, high = _T95[whole - 1], _T95[whole]
    return low + (high - low) * min(1.0, freedom - whole)


def spread(samples: Sequence[float], most_batches: int = _MOST_BATCHES) -> Spread | None:
    """How exactly the samples' median is known; None for fewer than three samples.

    Method of batch means (Law and Kelton, Simulation Modeling and Analysis, 9.5.3), with medians: at most
    `most_batches` batches of consecutive samples, which are far less correlated than the samples; s/√k of the batches'
    medians. The last factor is as the mean of k medians of m varies less than one median of k · m: a normal sample's
    median has a variance of about πσ²/(2m − 2 + π).
    """
    if len(samples) < 3:
        return None
    count = min(most_batches, len(samples))
    edges = [round(i * len(samples) / count) for i in range(count + 1)]
    medians = [median(samples[a:b]) for a, b in itertools.pairwise(edges)]
    short = math.sqrt(1 + (math.pi - 2) / 2 * count / len(samples))
    return Spread(statistics.stdev(medians) / math.sqrt(count) * short, count - 1)


def interval95(samples: Sequence[float]) -> tuple[float, float] | None:
    """A 95 % confidence interval around the median; None for fewer than three samples.

    Median ± t · error, of at most 20 batches. The tests hold the interval's coverage against simulation.
    """
    known = spread(samples)
    if known is None:
        return None
    half = t95(known.freedom) * known.error
    middle = median(samples)
    return middle - half, middle + half


def half_width(samples: Sequence[float]) -> float | None:
    """Half the interval as a part of the median: 0.01 is ±1 %. None where there is no interval."""
    interval = interval95(samples)
    return None if interval is None else (interval[1] - interval[0]) / 2 / median(samples)


def has_trend(samples: Sequence[float]) -> bool:
    """Whether the samples rise or fall, clearly (Mann–Kendall, 99 %) and by enough to matter (Theil–Sen, 1 %)."""
    n = len(samples)
    if n < 4:
        return False
    rises = sum((b > a) - (b < a) for i, a in enumerate(samples) for b in samples[i + 1 :])
    deviation = math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    if (abs(rises) - 1) / deviation < _TREND_Z:
        return False
    slopes = [(samples[j] - samples[i]) / (j - i) for i in range(n) for j in range(i + 1, n)]
    return abs(median(slopes)) * n > _TREND_MATTERS * median(samples)


def has_shift(samples: Sequence[float]) -> bool:
    """Whether the samples change their level once and keep it, as when a card's clocks drop: by 3 % or more, clearly.

    Pettitt's rank statistic (Applied Statistics 28, 1979) finds where; it is the Mann–Whitney statistic of the samples
    before against those after, here asked for 3.5 standard deviations. A trend misses a change near an end, as most
    pairs of samples lie on one side of it.
    """
    n = len(samples)
    above = [sum((b > a) - (b < a) for b in samples) for a in samples]
    scores = [abs(u) / math.sqrt(k * (n - k) * (n + 1) / 3) for k, u in enumerate(itertools.accumulate(above[:-1]), 1)]
    if max(scores, default=0.0) < _SHIFT_Z:
        return False
    cut = scores.index(max(scores)) + 1
    return abs(median(samples[cut:]) / median(samples[:cut]) - 1) >= _SHIFT_MATTERS
