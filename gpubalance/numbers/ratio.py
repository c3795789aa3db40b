"""The ratio of two measurements: its interval, verdict, and the smallest difference it shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from gpubalance.numbers.stats import Spread, spread, spread_of_sum, t95

Verdict = Literal["faster", "slower", "no difference"]

# An interval knows only its two runs, not how much equal runs differ, so no ratio nearer to 1 is
# called a difference.
MATTERS = 0.005
_NINETEEN_IN_TWENTY = 1.6449  # one-sided 95 % quantile of the normal distribution


class Ratio(NamedTuple):
    """`value` is a ratio of throughputs: above 1 is faster.

    `ci95` is None with fewer than three samples of either. `detectable` is the smallest true
    difference, as a fraction, that two runs like these show nine times in ten.
    """

    value: float
    ci95: tuple[float, float] | None
    detectable: float | None

    @property
    def verdict(self) -> Verdict | None:
        """A difference only if the whole interval is more than 0.5 % from 1; None if unknown."""
        if self.ci95 is None:
            return None
        low, high = self.ci95
        if low > 1 + MATTERS:
            return "faster"
        return "slower" if high < 1 / (1 + MATTERS) else "no difference"


def ratio(
    value: float, times_s: Sequence[float], baseline_times_s: Sequence[float]
) -> Ratio:
    """The ratio of two throughputs, `value`, with its interval from both runs' step times."""
    return _welch(value, [spread(times_s), spread(baseline_times_s)])


def ratio_of_sums(
    value: float,
    parts: Sequence[tuple[float, Sequence[float]]],
    baseline: Sequence[tuple[float, Sequence[float]]],
) -> Ratio:
    """The ratio of two sums of throughputs, `value`; each part comes with its step times."""
    return _welch(value, [spread_of_sum(parts), spread_of_sum(baseline)])


def mean_ratio(
    parts: Sequence[tuple[float, Sequence[float], Sequence[float]]],
) -> Ratio:
    """The geometric mean of independent ratios, each (value, times, baseline's times)."""
    logarithms = [math.log(value) for value, *_ in parts]
    value = math.exp(sum(logarithms) / len(parts))
    spreads: list[Spread | None] = []
    for _, times_s, baseline_times_s in parts:
        for each in (spread(times_s), spread(baseline_times_s)):
            spreads.append(each and Spread(each.error / len(parts), each.freedom))
    return _welch(value, spreads)


def _welch(value: float, spreads: Sequence[Spread | None]) -> Ratio:
    """value · exp(± t · √Σ error²).

    The degrees of freedom are those of Welch (1947) and Satterthwaite (1946).
    """
    variance = weighted = 0.0
    for each in spreads:
        if each is None:
            return Ratio(value, None, None)
        variance += each.error**2
        weighted += each.error**4 / each.freedom
    if not variance:
        return Ratio(value, (value, value), MATTERS)
    freedom = variance**2 / weighted
    error = math.sqrt(variance)
    t = t95(freedom)
    factor = math.exp(t * error)
    # Two things may hide it in other runs, each one time in twenty: their noise, and an
    # overestimate of their errors.
    hidden = (t + _NINETEEN_IN_TWENTY) * error * _larger(freedom)
    detectable = math.expm1(math.log1p(MATTERS) + hidden)
    return Ratio(value, (value / factor, value * factor), detectable)


def _larger(freedom: float) -> float:
    """The factor by which one run in twenty overestimates its error more: √(freedom/χ²).

    χ² is approximated by Wilson and Hilferty (1931), for two degrees of freedom or more.
    """
    part = 2 / (9 * freedom)
    return math.pow(1 - part - _NINETEEN_IN_TWENTY * math.sqrt(part), -1.5)
