"""The ratio of two measurements: its confidence interval, its verdict, and the smallest difference
it can show.
"""

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
    """`value` is a ratio of throughputs: above 1 is faster. `ci95` is None with fewer than three
    samples of either.

    `detectable` is the smallest true difference, as a fraction, that two runs like these show nine
    times in ten.
    """

    value: float
    ci95: tuple[float, float] | None
    detectable: float | None

    @property
    def verdict(self) -> Verdict | None:
        """A difference only if the whole interval is more than 0.5 % from 1; None without an
        interval.
        """
        if self.ci95 is None:
            return None
        low, high = self.ci95
        return (
            "faster"
            if low > 1 + MATTERS
            else "slower"
            if high < 1 / (1 + MATTERS)
            else "no difference"
        )


def ratio(value: float, times_s: Sequence[float], baseline_times_s: Sequence[float]) -> Ratio:
    """The ratio of two throughputs, `value`, with its interval from both runs' step times, in order
    and all above 0.
    """
    return _welch(value, [spread(times_s), spread(baseline_times_s)])


def ratio_of_sums(
    value: float,
    parts: Sequence[tuple[float, Sequence[float]]],
    baseline: Sequence[tuple[float, Sequence[float]]],
) -> Ratio:
    """The ratio of two sums of throughputs, `value`; each part comes with its step times in order
    of time.
    """
    return _welch(value, [spread_of_sum(parts), spread_of_sum(baseline)])


def mean_ratio(parts: Sequence[tuple[float, Sequence[float], Sequence[float]]]) -> Ratio:
    """The geometric mean of several ratios, each (value, times, baseline's times) and measured
    independently.
    """
    value = math.exp(sum(math.log(part[0]) for part in parts) / len(parts))
    spreads = [spread(times_s) for part in parts for times_s in part[1:]]
    return _welch(value, [s and Spread(s.error / len(parts), s.freedom) for s in spreads])


def _welch(value: float, spreads: Sequence[Spread | None]) -> Ratio:
    """value · exp(± t · √Σ error²), with the degrees of freedom of Welch (1947) and Satterthwaite
    (1946).
    """
    known = [s for s in spreads if s is not None]
    if len(known) < len(spreads):
        return Ratio(value, None, None)
    variance = sum(s.error**2 for s in known)
    if not variance:
        return Ratio(value, (value, value), MATTERS)
    freedom = variance**2 / sum(s.error**4 / s.freedom for s in known)
    error, t = math.sqrt(variance), t95(freedom)
    factor = math.exp(t * error)
    # Two things may hide it in other runs, each one time in twenty: their noise, and an
    # overestimate of their errors.
    detectable = math.expm1(
        math.log1p(MATTERS) + (t + _NINETEEN_IN_TWENTY) * error * _larger(freedom)
    )
    return Ratio(value, (value / factor, value * factor), detectable)


def _larger(freedom: float) -> float:
    """The factor by which another run may overestimate its error, exceeded one time in twenty:
    √(freedom/χ²).

    χ² is approximated by Wilson and Hilferty (1931), for two degrees of freedom or more.
    """
    return math.pow(
        1 - 2 / (9 * freedom) - _NINETEEN_IN_TWENTY * math.sqrt(2 / (9 * freedom)), -1.5
    )
