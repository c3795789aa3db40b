"""Checks the promises for correlated step times: the ±, the verdict, what is detectable, and when they are unsteady."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from gpubalance.numbers.ratio import Ratio, ratio
from gpubalance.numbers.stats import half_width, interval95, median
from gpubalance.numbers.steady import is_steady
from tests.bench.wanted import Share, Wanted, judged_shares

_DRAWS = 2000
_MOST = 8  # times that
_NOISE = 0.02
_COUNTS = (5, 8, 12, 20, 36, 54)
_CORRELATIONS = (0.0, 0.3, 0.5, 0.7, 0.9)


class Kept(NamedTuple):
    """How often promises are kept: the interval holds the true median, and equal series are called different.

    `found` is how often a true difference that one pair of series calls detectable is found in another pair.
    """

    covered: Share
    called_different: Share
    found: Share
    called_unsteady: Share


_WANTED = (Wanted(0.92), Wanted(0.05, at_most=True), Wanted(0.9), Wanted(0.05, at_most=True))


def main() -> Iterator[str]:
    yield f"first-order autoregressions with {_NOISE:.0%} noise: the 95 % interval holds the true value ({_WANTED[0]});"
    yield f"equal ones are called different ({_WANTED[1]}); what is detectable is found in another pair ({_WANTED[2]});"
    yield f"steady ones are called unsteady ({_WANTED[3]}); {_DRAWS} series and more, until that is met or missed"
    for count in _COUNTS:
        for correlation in _CORRELATIONS:
            figures = judged_shares(partial(promises, count, correlation, _DRAWS), _WANTED, _MOST)
            yield f"{count} timings, correlation {correlation}: {', '.join(figures)}"
    for correlation in _CORRELATIONS:
        covered, timings = until_precise(correlation)
        figure = f"{covered.part:.1%} of {covered.of}, after {timings:.0f} timings"
        yield f"measured until within ±1 %, as a probe does, correlation {correlation}: {figure}"


def promises(count: int, correlation: float, draws: int, number: int = 0) -> Kept:
    """The shares for `draws` random series of `count` timings, each correlated with the next; `number` is the seed."""
    series = drawn(4 * draws, count, correlation, number).tolist()
    firsts, seconds, others, fasters = (series[i::4] for i in range(4))
    intervals = [interval95(one) or (0.0, 0.0) for one in firsts]
    pairs = [_ratio(a, b) for a, b in zip(firsts, seconds, strict=True)]
    gains = [1 + (pair.detectable or 0.0) for pair in pairs]
    found = [
        _ratio(slow, [time / gain for time in fast]) for slow, fast, gain in zip(others, fasters, gains, strict=True)
    ]
    return Kept(
        covered=Share(sum(low <= 1 <= high for low, high in intervals), draws),
        called_different=Share(sum(pair.verdict != "no difference" for pair in pairs), draws),
        found=Share(sum(pair.verdict == "faster" for pair in found), draws),
        called_unsteady=Share(sum(not is_steady(one) for one in firsts), draws),
    )


def until_precise(correlation: float, draws: int = _DRAWS) -> tuple[Share, float]:
    """How often the interval holds the true value if it also decides when to stop, and the mean number of timings.

    Timings have half the noise; there are 5 to 48, a quarter more each time.
    """
    hits, counts = 0, []
    for series in ((1 + drawn(draws, 60, correlation)) / 2).tolist():
        count = 5
        while (half_width(series[:count]) or 0.0) > 0.01 and count < 48:
            count += max(1, count // 4)
        low, high = interval95(series[:count]) or (0.0, 0.0)
        hits += low <= 1 <= high
        counts.append(count)
    return Share(hits, draws), sum(counts) / draws


def drawn(series: int, count: int, correlation: float, seed: int = 0) -> np.ndarray:
    """Stationary first-order autoregressions around 1, as [series][timing]."""
    fresh = np.random.default_rng(seed).standard_normal((series, count))
    off = fresh.copy()
    for i in range(1, count):
        off[:, i] = correlation * off[:, i - 1] + (1 - correlation**2) ** 0.5 * fresh[:, i]
    return 1 + _NOISE * off


def _ratio(baseline: list[float], other: list[float]) -> Ratio:
    return ratio(median(baseline) / median(other), other, baseline)
