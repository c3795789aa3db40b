"""Whether step times, all above 0 and in order of time, keep their level."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

from gpubalance.numbers.stats import median, spread
from gpubalance.numbers.units import format_percent

_TREND_Z = 2.576  # 99 %
_TREND_MATTERS = 0.01
_TREND_ERRORS = 12.1  # 3.5 standard errors of a rise over all samples, each √12 of their level's
_SHIFT_Z = 3.5  # at the best of all places to cut, so stricter than one test
_SHIFT_MATTERS = 0.03
_SHIFT_ERRORS = 4.0
_QUIET = 0.03
_NORMAL_QUARTERS = 1.349  # between a normal distribution's quartiles, in standard deviations


def unquiet(samples: Sequence[float]) -> str | None:
    """What they say of a machine that has other work to do, as `timings vary by 12 %`; None where it was quiet.

    However many there are: an interval gets narrow with time, and yet such a machine gives something else tomorrow.
    """
    if len(samples) < 3:
        return None
    quarters = statistics.quantiles(samples, n=4, method="inclusive")
    vary = (quarters[2] - quarters[0]) / _NORMAL_QUARTERS / median(samples)
    if vary > _QUIET:
        return f"timings vary by {format_percent(vary)}"
    return None if is_steady(samples) else "timings did not keep their level"


def has_trend(samples: Sequence[float]) -> bool:
    """Whether the samples rise or fall, clearly (Mann–Kendall, 99 %) and by enough to matter (Theil–Sen, 1 %).

    Clearly for independent samples: where each is like the one before it, every tenth such series seems to have one.
    """
    n = len(samples)
    if n < 4:
        return False
    rises = sum((b > a) - (b < a) for i, a in enumerate(samples) for b in samples[i + 1 :])
    deviation = math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    return (abs(rises) - 1) / deviation >= _TREND_Z and abs(_slope(samples)) * n > _TREND_MATTERS


def is_steady(samples: Sequence[float]) -> bool:
    """Whether they have no trend and do not change their level, by more than correlated noise alone does.

    Of steady series with a correlation of up to 0.7 at most one in twenty is called unsteady: `scripts/bench compare`.
    """
    return not (has_trend(samples) and _rises_beyond_noise(samples)) and not _shifts(samples)


def _slope(samples: Sequence[float]) -> float:
    """A sample's median growth to the next, as a part of it (Theil–Sen)."""
    logs = [math.log(sample) for sample in samples]
    return median([(b - a) / (j - i) for (i, a), (j, b) in itertools.combinations(enumerate(logs), 2)])


def _rises_beyond_noise(samples: Sequence[float]) -> bool:
    slope = _slope(samples)
    noise = spread([sample * math.exp(-slope * i) for i, sample in enumerate(samples)])
    return noise is not None and abs(slope) * len(samples) >= _TREND_ERRORS * noise.error


def _shifts(samples: Sequence[float]) -> bool:
    """Whether they change their level once and keep it, as when a card's clocks drop: by 3 % or more, clearly.

    Where Pettitt's rank statistic (Applied Statistics 28, 1979), the Mann–Whitney statistic of the samples before
    against those after, reaches 3.5 standard deviations, the best fit of two levels says where. A trend misses a change
    near an end, as most pairs of samples lie on one side of it.
    """
    n = len(samples)
    above = [sum((b > a) - (b < a) for b in samples) for a in samples]
    scores = [abs(u) / math.sqrt(k * (n - k) * (n + 1) / 3) for k, u in enumerate(itertools.accumulate(above[:-1]), 1)]
    cuts = [k for k, score in enumerate(scores, 1) if score >= _SHIFT_Z]
    if not cuts:
        return False
    cut = min(cuts, key=lambda k: _distance(samples[:k]) + _distance(samples[k:]))
    before, after = median(samples[:cut]), median(samples[cut:])
    noise = spread([sample / (before if i < cut else after) for i, sample in enumerate(samples)])
    error = noise.error * n / math.sqrt(cut * (n - cut)) if noise else 0.0
    return abs(after / before - 1) >= _SHIFT_MATTERS and abs(math.log(after / before)) >= _SHIFT_ERRORS * error


def _distance(samples: Sequence[float]) -> float:
    """From their median, in sum."""
    middle = median(samples)
    return sum(abs(sample - middle) for sample in samples)
