"""What is promised of correlated step times: the ±, the verdict, what is detectable, and when they are not steady."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gpubalance.numbers.ratio import Ratio, ratio
from gpubalance.numbers.stats import interval95, median
from gpubalance.numbers.steady import is_steady

DRAWS = 2000
_NOISE = 0.02
_COUNTS = (5, 8, 12, 20, 36, 54)
_CORRELATIONS = (0.0, 0.3, 0.5, 0.7, 0.9)


class Kept(NamedTuple):
    """How often, as a part: the interval holds the true median; equal series are called different.

    And a true difference of what one pair of series calls detectable is found in another pair; steady ones are called
    unsteady.
    """

    covered: float
    called_different: float
    found: float
    called_unsteady: float


def main() -> Iterator[str]:
    yield f"{DRAWS} series a row, first-order autoregressions with {_NOISE:.0%} noise: the 95 % interval holds the true"
    yield "value (wanted: 92 % from 12 timings on, up to a correlation of 0.7); equal ones are called different (at"
    yield "most 5 %); what is detectable is found in another pair (90 %); steady ones are called unsteady (at most 5 %)"
    for count in _COUNTS:
        for correlation in _CORRELATIONS:
            kept = promises(count, correlation)
            yield f"{count} timings, correlation {correlation}: {', '.join(f'{part:.1%}' for part in kept)}"


def promises(count: int, correlation: float, draws: int = DRAWS) -> Kept:
    """Of so many timings a series, each correlated with the next."""
    series = drawn(4 * draws, count, correlation).tolist()
    firsts, seconds, others, fasters = (series[i::4] for i in range(4))
    intervals = [interval95(one) or (0.0, 0.0) for one in firsts]
    pairs = [_ratio(a, b) for a, b in zip(firsts, seconds, strict=True)]
    gains = [1 + (pair.detectable or 0.0) for pair in pairs]
    found = [
        _ratio(slow, [time / gain for time in fast]) for slow, fast, gain in zip(others, fasters, gains, strict=True)
    ]
    return Kept(
        covered=sum(low <= 1 <= high for low, high in intervals) / draws,
        called_different=sum(pair.verdict != "no difference" for pair in pairs) / draws,
        found=sum(pair.verdict == "faster" for pair in found) / draws,
        called_unsteady=sum(not is_steady(one) for one in firsts) / draws,
    )


def drawn(series: int, count: int, correlation: float, seed: int = 1) -> np.ndarray:
    """[series][timing]: stationary first-order autoregressions around 1."""
    fresh = np.random.default_rng(seed).standard_normal((series, count))
    off = fresh.copy()
    for i in range(1, count):
        off[:, i] = correlation * off[:, i - 1] + (1 - correlation**2) ** 0.5 * fresh[:, i]
    return 1 + _NOISE * off


def _ratio(baseline: list[float], other: list[float]) -> Ratio:
    return ratio(median(baseline) / median(other), other, baseline)
