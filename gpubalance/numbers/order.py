"""How samples in order of time rise and fall, in n · log n steps instead of one for each pair."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# A median slope is exact to this growth over all samples.
_EXACT = 1e-9


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
