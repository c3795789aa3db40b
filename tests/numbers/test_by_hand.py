"""Spreads, ratios and levels of a few samples, computed once more by NumPy and SciPy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from gpubalance.numbers.stats import (
    Ratio,
    Spread,
    half_width,
    interval95,
    interval_of_sum,
    mad,
    mean,
    mean_ratio,
    median,
    part95,
    ratio,
    ratio_of_sums,
    spread,
    spread_of_sum,
    t95,
)
from gpubalance.numbers.steady import _shifts, has_trend, is_steady, unquiet
from tests.support.cases import cases
from tests.support.known import known

series = st.lists(st.floats(0.5, 2.0), min_size=3, max_size=40)


def clipped_logs(samples: Sequence[float]) -> Any:
    """Deviations of logarithms from their median.

    The fifth that is furthest off is drawn in to the next, or to five standard deviations.
    """
    logs = np.log(samples)
    deviations = logs - np.median(logs)
    sizes = np.sort(np.abs(deviations))
    usual = sizes[len(sizes) - 1 - len(sizes) // 5]
    far = max(usual, 5 * 1.4826 * np.median(sizes))
    clipped: np.ndarray[tuple[int], np.dtype[np.float64]] = np.clip(
        deviations, -far, far
    )
    return clipped


def by_correlation(samples: Sequence[float]) -> Spread:
    deviations = clipped_logs(samples)
    count = len(deviations)
    centred = deviations - deviations.mean()
    squares = float((centred**2).sum())
    rho = float((centred[1:] * centred[:-1]).sum()) / squares if squares else 0.0
    rho = float(np.clip(rho + (2 + 4 * rho) / count, 0.0, 0.95))
    worth = max(3.0, count * (1 - rho) / (1 + rho))
    # s² · n′/(n′ − 1) · π/2 / n′
    variance = squares / count * worth / (worth - 1) * math.pi / 2 / worth
    return Spread(math.sqrt(variance), worth - 1)


def by_batches(samples: Sequence[float]) -> Spread:
    deviations = clipped_logs(samples)
    count = min(5, len(deviations))
    edges = [round(number * len(deviations) / count) for number in range(count + 1)]
    batches = [deviations[a:b] for a, b in itertools.pairwise(edges)]
    medians = [float(np.median(batch)) for batch in batches]
    short = math.sqrt(1 + (math.pi - 2) / 2 * count / len(deviations))
    return Spread(float(np.std(medians, ddof=1)) / math.sqrt(count) * short, count - 1)


@given(series)
def test_the_spread_is_the_larger_of_both(samples: list[float]) -> None:
    expected = max(by_correlation(samples), by_batches(samples))
    assert known(spread(samples)) == pytest.approx(expected, rel=1e-6, abs=1e-12)


@given(series)
def test_an_interval_is_as_many_errors_wide_as_t_says(samples: list[float]) -> None:
    error, freedom = known(spread(samples))
    half = t95(freedom) * error
    middle = float(np.median(samples))
    expected = (middle * math.exp(-half), middle * math.exp(half))
    assert known(interval95(samples)) == pytest.approx(expected)
    low, high = expected
    assert known(half_width(samples)) == pytest.approx((high - low) / 2 / middle)


@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=40))
def test_plain_statistics_are_numpys(samples: list[float]) -> None:
    assert median(samples) == pytest.approx(np.median(samples))
    assert mean(samples) == pytest.approx(np.mean(samples))
    assert part95(samples) == pytest.approx(np.percentile(samples, 95))
    deviations = np.abs(np.array(samples) - np.median(samples))
    assert mad(samples) == pytest.approx(np.median(deviations))


RUN = [1.0, 1.02, 0.99, 1.03, 1.0, 0.98, 1.01, 1.0, 1.02, 0.97]
OTHER = [1.1, 1.05, 1.2, 1.0, 1.15, 1.08, 1.12, 1.1]


def welch(value: float, *spreads: Spread) -> Ratio:
    """The ratio's interval, with the freedom of Welch and Satterthwaite.

    The error that is overestimated one time in twenty is by the exact quantile of χ².
    """
    variances = [each.error**2 for each in spreads]
    weighted = sum(each.error**4 / each.freedom for each in spreads)
    freedom = sum(variances) ** 2 / weighted
    error = math.sqrt(sum(variances))
    t = t95(freedom)
    larger = math.sqrt(freedom / scipy_stats.chi2.ppf(0.05, freedom))
    hidden = (t + scipy_stats.norm.ppf(0.95)) * error * larger
    low, high = value * math.exp(-t * error), value * math.exp(t * error)
    return Ratio(value, (low, high), 1.005 * math.exp(hidden) - 1)


def assert_like(found: Ratio, expected: Ratio) -> None:
    assert found.value == pytest.approx(expected.value)
    assert known(found.ci95) == pytest.approx(known(expected.ci95))
    assert found.detectable == pytest.approx(expected.detectable, rel=0.02)


def test_a_ratio_is_known_as_both_of_its_runs_are() -> None:
    first, second = known(spread(RUN)), known(spread(OTHER))
    assert_like(ratio(1.1, RUN, OTHER), welch(1.1, first, second))
    both = [(1.2, RUN, OTHER), (0.9, OTHER, RUN)]
    halves = [Spread(each.error / 2, each.freedom) for each in (first, second)] * 2
    assert_like(mean_ratio(both), welch(math.sqrt(1.2 * 0.9), *halves))
    sums = [(300.0, RUN), (100.0, OTHER)]
    total = known(spread_of_sum(sums))
    assert total.error == pytest.approx(0.75 * first.error + 0.25 * second.error)
    assert total.freedom == min(first.freedom, second.freedom)
    half = t95(total.freedom) * total.error
    ends = (400 * math.exp(-half), 400 * math.exp(half))
    assert known(interval_of_sum(sums)) == pytest.approx(ends)
    assert_like(ratio_of_sums(1.3, sums, [(50.0, RUN)]), welch(1.3, total, first))


def test_too_few_samples_and_none_that_vary() -> None:
    assert ratio(1.1, RUN, [1.0, 1.1]) == Ratio(1.1, None, None)
    assert ratio(1.1, [1.0] * 3, [2.0] * 3) == Ratio(1.1, (1.1, 1.1), 0.005)
    assert known(spread([1.0, 1.0, 1.1])).freedom >= 1
    assert interval_of_sum([(1.0, RUN), (1.0, [1.0, 2.0])]) is None


@cases(
    "interval, verdict",
    ((1.0051, 1.1), "faster"),
    ((1.005, 1.1), "no difference"),
    ((0.9, 1 / 1.005), "no difference"),
    ((0.9, 0.9949), "slower"),
    (None, None),
)
def test_a_difference_is_more_than_half_a_percent(
    interval: tuple[float, float] | None, verdict: str | None
) -> None:
    assert Ratio(1.0, interval, None).verdict == verdict


def test_a_trend_needs_four_samples_and_a_percent() -> None:
    assert not has_trend([1.0, 2.0, 3.0])
    for growth, matters in ((1.011, True), (1.009, False), (1 / 1.011, True)):
        assert has_trend([growth ** (n / 10) for n in range(10)]) is matters
    # 15 pairs rise: (15 - 1) / sqrt(6 * 5 * 17 / 18) is 2.63, beyond 99 %
    assert has_trend([1.0, 1.1, 1.2, 1.3, 1.4, 1.5])


def level(first: float, second: float, cut: int, count: int) -> list[float]:
    """Two levels with a regular noise of half a percent."""
    levels = [first] * cut + [second] * (count - cut)
    return [one * (1 + 0.005 * (n % 3 - 1)) for n, one in enumerate(levels)]


@cases(
    "samples, shifts",
    (level(1.0, 1.05, 15, 30), True),
    (level(1.05, 1.0, 15, 30), True),
    (level(1.0, 1.05, 2, 30), False),
    (level(1.0, 1.029, 15, 30), False),
    (level(1.0, 1.031, 15, 30), True),
    (level(1.0, 1.0, 15, 30), False),
    (level(1.0, 2.0, 3, 6), False),
    ([1.0], False),
)
def test_another_level_is_clear_and_3_percent(
    samples: list[float], shifts: bool
) -> None:
    assert _shifts(samples) is shifts
    if shifts:
        assert not is_steady(samples)


def test_a_busy_machine_varies_or_does_not_keep_its_level() -> None:
    assert unquiet([1.0, 9.0]) is None
    quarters = np.percentile(OTHER, [25, 75])
    vary = float(quarters[1] - quarters[0]) / 1.349 / float(np.median(OTHER))
    assert vary > 0.03
    assert unquiet(OTHER) == f"timings vary by {100 * vary:.0f} %"
    assert unquiet(level(1.0, 1.031, 15, 30)) == "timings did not keep their level"
    assert unquiet(level(1.0, 1.0, 15, 30)) is None
    # An interquartile range of 3 % of the median times 1.349 is the bound.
    for width, told in ((0.0398, None), (0.0412, "timings vary by 3 %")):
        spread_out = [1 - width / 2, 1.0, 1 + width / 2] * 3
        assert unquiet(spread_out) == told


def true_t95(freedom: float) -> float:
    return float(scipy_stats.t.ppf(0.975, freedom))


@given(st.floats(0, 1))
@example(0.0)
@example(1.0)
def test_between_whole_degrees_it_is_on_the_line(part: float) -> None:
    for below in range(1, 19):
        line = (1 - part) * true_t95(below) + part * true_t95(below + 1)
        assert t95(below + part) == pytest.approx(line, abs=6e-4)


@given(st.floats(1, 1e6))
def test_no_interval_is_too_narrow(freedom: float) -> None:
    assert t95(freedom) >= true_t95(freedom) - 6e-4
    assert t95(max(19.0, freedom)) == t95(19)
