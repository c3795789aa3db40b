"""Two measurements as a ratio: its confidence interval, what can be said of it, and what it could not have shown."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple

from gpubalance.numbers.stats import Spread, mad, spread, t95

Verdict = Literal["faster", "slower", "no difference"]

# An interval knows two runs only, not how much equal runs differ: nothing nearer to 1 is called a difference.
MATTERS = 0.005
_BATCHES = 10  # fewer than for one run's interval: what wanders over seconds must not look better known than it is
_MOST_CORRELATED = 0.95
_LEAST_INDEPENDENT = 3  # samples that any series is worth, however it wanders
_NORMAL_MAD = 1.4826  # a normal distribution's standard deviation over its median absolute deviation
_NINE_IN_TEN = 1.2816  # one-sided 90 % quantile of the normal distribution


class Ratio(NamedTuple):
    """`value` is a ratio of throughputs: above 1 is faster. `ci95` is None with fewer than three samples of either.

    `detectable` is the smallest true difference, as a fraction, that would be found nine times in ten.
    """

    value: float
    ci95: tuple[float, float] | None
    detectable: float | None

    @property
    def verdict(self) -> Verdict | None:
        """A difference only where the whole interval is more than 0.5 % from 1; None where there is no interval."""
        if self.ci95 is None:
            return None
        low, high = self.ci95
        return "faster" if low > 1 + MATTERS else "slower" if high < 1 / (1 + MATTERS) else "no difference"


def ratio(value: float, times_s: Sequence[float], baseline_times_s: Sequence[float]) -> Ratio:
    """The ratio `value` of two throughputs whose step times, in order of time, are these. All are above 0."""
    return _welch(value, [_log_spread(times_s), _log_spread(baseline_times_s)])


def mean_ratio(parts: Sequence[tuple[float, Sequence[float], Sequence[float]]]) -> Ratio:
    """The geometric mean of several such ratios, each (value, times, baseline's times), measured one by one."""
    value = math.exp(sum(math.log(part[0]) for part in parts) / len(parts))
    spreads = [_log_spread(times_s) for part in parts for times_s in part[1:]]
    return _welch(value, [s and Spread(s.error / len(parts), s.freedom) for s in spreads])


def _log_spread(times_s: Sequence[float]) -> Spread | None:
    """Of the median of the logarithms: by batch means, and no less than by the samples' own autocorrelation.

    Ten batches do not see all of a step time that wanders over as long as a batch takes. So where samples follow each
    other with a correlation ρ above its own standard error, they count as n·(1 − ρ)/(1 + ρ) independent ones, as those
    of a first-order autoregression. ρ is Kendall's (1954), for whom a short series' own is too small by (1 + 4ρ)/n.
    """
    logs = [math.log(t) for t in times_s]
    batched = spread(logs, _BATCHES)
    count = len(logs)
    if batched is None or (known := _correlation(logs)) < 1 / math.sqrt(count):
        return batched
    worth = max(_LEAST_INDEPENDENT, count * (1 - known) / (1 + known))
    error = math.sqrt(math.pi / 2) * _NORMAL_MAD * mad(logs) / math.sqrt(worth)
    return Spread(max(batched.error, error), min(batched.freedom, worth - 1))


def _correlation(samples: Sequence[float]) -> float:
    """Of each sample with the next, up to 0.95."""
    middle = statistics.fmean(samples)
    off = [sample - middle for sample in samples]
    squares = sum(x * x for x in off)
    found = sum(a * b for a, b in itertools.pairwise(off)) / squares if squares else 0.0
    return min(_MOST_CORRELATED, found + (1 + 4 * found) / len(samples))


def _welch(value: float, spreads: Sequence[Spread | None]) -> Ratio:
    """value · exp(± t · √Σ error²), with the degrees of freedom of Welch (1947) and Satterthwaite (1946)."""
    known = [s for s in spreads if s is not None]
    if len(known) < len(spreads):
        return Ratio(value, None, None)
    variance = sum(s.error**2 for s in known)
    least = sum(s.error**4 / s.freedom for s in known)
    t = t95(variance**2 / least) if least else 0.0
    error = math.sqrt(variance)
    factor = math.exp(t * error)
    return Ratio(value, (value / factor, value * factor), math.expm1(math.log1p(MATTERS) + (t + _NINE_IN_TEN) * error))
