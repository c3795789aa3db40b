"""Statistics of step times, all above 0, and the ratio of two measurements with its interval.

Samples of one run are not independent: their intervals allow for it.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple

# Two-sided 95 % quantiles of Student's t for 1, 2, … degrees of freedom.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093,
)  # fmt: skip
# A normal distribution's standard deviation over its median absolute deviation.
_NORMAL_MAD = 1.4826
# Samples further than this from the median, in standard deviations, are clipped to it, as the
# median does not feel them. At most a fifth are: more of them are no outliers but another level.
_FAR = 5.0
_FEW = 5
_BATCHES = 5
_MOST_CORRELATED = 0.95
# Independent samples that any series is worth, however it wanders
_LEAST_INDEPENDENT = 3


def median(samples: Sequence[float]) -> float:
    """The median; of an even number of samples the mean of the two in the middle."""
    return statistics.median(samples)


def part95(samples: Sequence[float]) -> float:
    """The 95th percentile of two samples or more."""
    return statistics.quantiles(samples, n=20, method="inclusive")[-1]


def mean(samples: Sequence[float]) -> float:
    """The arithmetic mean."""
    return statistics.fmean(samples)


def mad(samples: Sequence[float]) -> float:
    """The median absolute deviation from the median, unscaled."""
    middle = median(samples)
    return median([abs(sample - middle) for sample in samples])


class Spread(NamedTuple):
    """The standard error of a median's logarithm, and its degrees of freedom."""

    error: float
    freedom: float


def t95(freedom: float) -> float:
    """The two-sided 95 % quantile of Student's t, for at least one degree of freedom.

    Linear between whole degrees, constant from 19 on, and never below the true one.
    """
    whole = min(len(_T95) - 1, int(freedom))
    low = _T95[whole - 1]
    high = _T95[whole]
    return low + (high - low) * min(1.0, freedom - whole)


def spread(samples: Sequence[float]) -> Spread | None:
    """How exactly the median of samples, in order of time, is known; None for fewer than three.

    The error follows from the correlation of successive samples, and is at least that of batch
    means, as a first-order autoregression misses slow wandering. `scripts/bench compare` measures
    the coverage: at least 92 % from 12 samples on, up to a correlation of 0.7.
    """
    if len(samples) < 3:
        return None
    logs = [math.log(sample) for sample in samples]
    middle = median(logs)
    deviations = [log - middle for log in logs]
    usual = sorted(map(abs, deviations))[-1 - len(deviations) // _FEW]
    far = max(usual, _FAR * _NORMAL_MAD * mad(logs))
    clipped = [min(far, max(-far, deviation)) for deviation in deviations]
    return max(_of_correlated(clipped), _of_batches(clipped))


def _of_correlated(samples: Sequence[float]) -> Spread:
    """√(π/2) · s / √n′, as for a normal median.

    These n samples are worth n′ = n · (1 − ρ)/(1 + ρ) independent ones. A short series
    underestimates ρ by (1 + 4ρ)/n (Kendall 1954). Here (2 + 4ρ)/n is added, as too small a ρ does
    more harm; and s² is multiplied by n′/(n′ − 1), as correlated samples stay near their own mean.
    """
    count = len(samples)
    middle = mean(samples)
    deviations = [sample - middle for sample in samples]
    squares = sum(deviation * deviation for deviation in deviations)
    products = sum(before * after for before, after in itertools.pairwise(deviations))
    rho = products / squares if squares else 0.0
    rho = min(_MOST_CORRELATED, max(0.0, rho + (2 + 4 * rho) / count))
    worth = max(_LEAST_INDEPENDENT, count * (1 - rho) / (1 + rho))
    variance = math.pi / 2 * squares / count / (worth - 1)
    return Spread(math.sqrt(variance), worth - 1)


def _of_batches(samples: Sequence[float]) -> Spread:
    """s/√k of the medians of k = 5 batches of consecutive samples.

    See Law and Kelton, Simulation Modeling, 9.5.3. Multiplied by √(1 + (π − 2)/2 · k/n), as the
    mean of k medians of m varies less than one median of k · m: the median of m normal samples has
    a variance of about πσ²/(2m − 2 + π).
    """
    count = min(_BATCHES, len(samples))
    edges = [round(i * len(samples) / count) for i in range(count + 1)]
    medians = [median(samples[start:end]) for start, end in itertools.pairwise(edges)]
    short = math.sqrt(1 + (math.pi - 2) / 2 * count / len(samples))
    return Spread(statistics.stdev(medians) / math.sqrt(count) * short, count - 1)


def spread_of_sum(parts: Sequence[tuple[float, Sequence[float]]]) -> Spread | None:
    """How exactly a sum of rates is known, each with its step times; None if one has too few.

    The errors are added, as devices share a machine: what disturbs one may disturb all of them
    alike.
    """
    error = total = 0.0
    freedom = math.inf
    for rate, samples in parts:
        part = spread(samples)
        if part is None:
            return None
        error += rate * part.error
        total += rate
        freedom = min(freedom, part.freedom)
    return Spread(error / total, freedom)


def interval_of_sum(
    parts: Sequence[tuple[float, Sequence[float]]],
) -> tuple[float, float] | None:
    """A 95 % confidence interval of a sum of rates; None if a part has too few samples."""
    known = spread_of_sum(parts)
    if known is None:
        return None
    return _interval(sum(rate for rate, _ in parts), known)


def interval95(samples: Sequence[float]) -> tuple[float, float] | None:
    """A 95 % confidence interval of the median; None for fewer than three samples."""
    known = spread(samples)
    if known is None:
        return None
    return _interval(median(samples), known)


def _interval(value: float, known: Spread) -> tuple[float, float]:
    """value · exp(± t · error)."""
    half = t95(known.freedom) * known.error
    return value * math.exp(-half), value * math.exp(half)


def half_width(samples: Sequence[float]) -> float | None:
    """Half of `interval95`'s width as a fraction of the median: 0.01 is ± 1 %."""
    known = spread(samples)
    if known is None:
        return None
    return math.sinh(t95(known.freedom) * known.error)


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
