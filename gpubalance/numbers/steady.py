"""Whether step times, all above 0 and in order of time, keep their level."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from heapq import heappop, heappush, heappushpop

import numpy as np
from numpy.typing import NDArray

from gpubalance.numbers.stats import median, spread
from gpubalance.numbers.units import format_percent

_TREND_Z = 2.576  # 99 %
_TREND_MATTERS = 0.01
# 3.5 standard errors of a rise over all samples, which is √12 standard errors of the level.
_TREND_ERRORS = 12.1
_SHIFT_Z = 3.5  # taken at the best of all cuts, so stricter than a single test
_SHIFT_MATTERS = 0.03
_SHIFT_ERRORS = 4.0
_QUIET = 0.03
# From a normal distribution's lower to its upper quartile, in standard deviations.
_NORMAL_QUARTERS = 1.349
# A median slope is exact to this growth over all samples.
_EXACT = 1e-9


def unquiet(samples: Sequence[float]) -> str | None:
    """Why the samples look like a busy machine's: `timings vary by 12 %`; None if they do not.

    More samples do not help: an interval narrows with time, yet a busy machine gives another result
    tomorrow.
    """
    if len(samples) < 3:
        return None
    quarters = statistics.quantiles(samples, n=4, method="inclusive")
    vary = (quarters[2] - quarters[0]) / _NORMAL_QUARTERS / median(samples)
    if vary > _QUIET:
        return f"timings vary by {format_percent(vary)}"
    if is_steady(samples):
        return None
    return "timings did not keep their level"


def has_trend(samples: Sequence[float]) -> bool:
    """Whether the samples rise or fall, clearly and by enough to matter.

    Clearly is 99 % by Mann and Kendall, enough 1 % by Theil and Sen. The 99 % hold for independent
    samples: of series whose samples follow each other, every tenth seems to have a trend.
    """
    return _trend(samples) is not None


def is_steady(samples: Sequence[float]) -> bool:
    """Whether the samples have no trend and no change of level beyond correlated noise.

    At most one in twenty steady series with a correlation of up to 0.7 is called unsteady:
    `scripts/bench compare`.
    """
    slope = _trend(samples)
    if slope is not None and _rises_beyond_noise(samples, slope):
        return False
    return not _shifts(samples)


def _trend(samples: Sequence[float]) -> float | None:
    """The trend's growth from one sample to the next, as a fraction; None if there is none."""
    import numpy as np  # here, as most commands measure nothing

    n = len(samples)
    if n < 4:
        return None
    series = np.array(samples, dtype=float)
    difference = falling_pairs(series[::-1]) - falling_pairs(series)
    deviation = math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    if (abs(difference) - 1) / deviation < _TREND_Z:
        return None
    slope = median_slope(np.log(series))
    return slope if abs(slope) * n > _TREND_MATTERS else None


def _rises_beyond_noise(samples: Sequence[float], slope: float) -> bool:
    noise = spread([sample * math.exp(-slope * i) for i, sample in enumerate(samples)])
    return (
        noise is not None and abs(slope) * len(samples) >= _TREND_ERRORS * noise.error
    )


def _shifts(samples: Sequence[float]) -> bool:
    """Whether the samples change their level once and keep it, as when a card's clocks drop.

    The change must be clear, and 3 % or more. Pettitt's rank statistic (Applied Statistics 28,
    1979), the Mann–Whitney statistic of the samples before a cut against those after it, must reach
    3.5 standard deviations; the best fit of two levels then places the cut. A trend misses a change
    near an end, as most pairs of samples lie on one side of it.
    """
    n = len(samples)
    cuts = _clear_cuts(samples)
    if not cuts:
        return False
    distances_before = _distances(samples)
    distances_after = _distances(samples[::-1])[::-1]
    cut = min(cuts, key=lambda cut: distances_before[cut - 1] + distances_after[cut])
    before = median(samples[:cut])
    after = median(samples[cut:])
    levelled = [sample / before for sample in samples[:cut]]
    levelled += [sample / after for sample in samples[cut:]]
    noise = spread(levelled)
    error = noise.error * n / math.sqrt(cut * (n - cut)) if noise else 0.0
    change = after / before
    return (
        abs(change - 1) >= _SHIFT_MATTERS
        and abs(math.log(change)) >= _SHIFT_ERRORS * error
    )


def _clear_cuts(samples: Sequence[float]) -> list[int]:
    """Before which samples the level seems to change, by Pettitt's statistic."""
    n = len(samples)
    ordered = sorted(samples)
    cuts = []
    statistic = 0
    for cut, last in enumerate(samples[:-1], 1):
        statistic += n - bisect_right(ordered, last) - bisect_left(ordered, last)
        if abs(statistic) / math.sqrt(cut * (n - cut) * (n + 1) / 3) >= _SHIFT_Z:
            cuts.append(cut)
    return cuts


def _distances(samples: Sequence[float]) -> list[float]:
    """For each sample the sum of the distances from the median, of it and all before it."""
    lower: list[
        float
    ] = []  # the lower half as a heap, negated: its first is its largest
    upper: list[float] = []
    lower_sum = upper_sum = 0.0
    distances = []
    for sample in samples:
        largest = -heappushpop(lower, -sample)
        heappush(upper, largest)
        lower_sum += sample - largest
        upper_sum += largest
        if len(upper) > len(lower):
            smallest = heappop(upper)
            heappush(lower, -smallest)
            lower_sum += smallest
            upper_sum -= smallest
        # The lower half may have one more: the median itself
        extra = (len(lower) - len(upper)) * -lower[0]
        distances.append(upper_sum - lower_sum + extra)
    return distances


def falling_pairs(samples: NDArray[np.float64]) -> int:
    """How many pairs of samples fall: the later one is less."""
    ranks = np.empty(len(samples), np.int32)
    # Equal ones in order of time, so that they do not fall
    ranks[np.argsort(samples, kind="stable")] = np.arange(len(samples))
    return _inversions(ranks)


def median_slope(samples: NDArray[np.float64]) -> float:
    """The median of all pairs' slopes, from one sample to the next; of two samples or more.

    The same as if all were sorted: with an even number it is the mean of the two in the middle.
    """
    pairs = len(samples) * (len(samples) - 1) // 2
    lower, up_to_it = _slope_of_rank(samples, (pairs - 1) // 2)
    if up_to_it > pairs // 2:
        return lower
    upper, _ = _slope_of_rank(samples, pairs // 2)
    return (lower + upper) / 2


def _slope_of_rank(samples: NDArray[np.float64], rank: int) -> tuple[float, int]:
    """The slope that comes after so many others, and how many are no higher; by bisection.

    A pair's slope is above s if it still rises after a line with the slope s was taken off.
    """
    count = len(samples)
    places = np.arange(count)
    pairs = count * (count - 1) // 2
    slopes = np.diff(samples)  # each pair's is a mean of these
    low = float(slopes.min())
    high = float(slopes.max())
    up_to_high = pairs
    while (high - low) * count > _EXACT:
        slope = (low + high) / 2
        up_to_it = pairs - falling_pairs((samples - slope * places)[::-1])
        if up_to_it > rank:
            high = slope
            up_to_high = up_to_it
        else:
            low = slope
    return (low + high) / 2, up_to_high


def _inversions(ranks: NDArray[np.int32]) -> int:
    """How many pairs of ranks fall; each of 0 … n − 1 is there once.

    They are sorted by one bit after the other, from the highest on. Those that are equal so far lie
    together, in order of time: of them a pair falls in this bit if a zero follows a one.
    """
    falls = 0
    places = np.arange(len(ranks), dtype=np.int32)
    ones = np.zeros(len(ranks) + 1, np.int32)  # before each place
    for bit in reversed(range(len(ranks).bit_length())):
        is_one = ranks >> bit & 1
        begins = ranks >> (bit + 1) << (bit + 1)  # of those that are equal so far
        np.cumsum(is_one, out=ones[1:])
        ones_before = ones[:-1] - ones[begins]
        falls += int(ones_before.sum(where=is_one == 0, dtype=np.int64))
        to = np.where(is_one, begins + (1 << bit) + ones_before, places - ones_before)
        ordered = np.empty_like(ranks)
        ordered[to] = ranks
        ranks = ordered
    return falls
