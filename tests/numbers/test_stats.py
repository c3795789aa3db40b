"""Statistics, held against what is known of them."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubalance.numbers.stats import half_width, interval95, mad, median, spread
from gpubalance.numbers.steady import has_trend, is_steady
from tests.support.cases import cases
from tests.support.comparisons import promises
from tests.support.known import known

times = st.lists(st.floats(0.001, 100), min_size=1, max_size=60)


@given(times)
def test_the_interval_holds_the_median(samples: list[float]) -> None:
    interval = interval95(samples)
    if len(samples) < 3:
        assert interval is None
    else:
        low, high = known(interval)
        assert low <= median(samples) <= high


@given(times, st.floats(0.01, 100))
def test_scaling_the_samples_scales_everything(
    samples: list[float], factor: float
) -> None:
    scaled = [factor * s for s in samples]
    assert mad(scaled) == pytest.approx(factor * mad(samples), rel=1e-6, abs=1e-9)
    width = half_width(samples)
    other = half_width(scaled)
    assert (width is None) == (other is None)
    if width is not None:
        assert other == pytest.approx(width, rel=1e-6, abs=1e-9)


@cases("count, correlation", (12, 0.0), (12, 0.7), (24, 0.5), (54, 0.7))
def test_what_is_promised_of_correlated_samples_holds(
    count: int, correlation: float
) -> None:
    """The rows of scripts/bench compare, with fewer draws."""
    kept = promises(count, correlation, draws=500)
    assert kept.covered.part >= 0.92
    assert kept.called_different.part <= 0.05
    assert kept.found.part >= 0.9
    assert kept.called_unsteady.part <= 0.05


def test_five_samples_are_enough_for_an_interval() -> None:
    assert promises(5, 0.0, draws=500).covered.part >= 0.94
    assert promises(5, 0.7, draws=500).covered.part >= 0.82


def test_one_slow_sample_says_nothing_of_the_median() -> None:
    source = random.Random(1)
    samples = [source.gauss(1, 0.02) for _ in range(40)]
    usual, disturbed = (
        known(spread(of)) for of in (samples, [3.0, *samples[1:20], 3.0, *samples[21:]])
    )
    assert disturbed.error < 2 * usual.error


def test_what_wanders_for_long_is_known_less_well() -> None:
    """What wanders for long is known less well than its next sample tells.

    Each fifth of the samples has a level of its own.

    The samples' correlation, about 0.4, would give half of that error.
    """
    source = random.Random(4)
    samples = [
        level + source.gauss(0, 0.02)
        for level in (1.0, 1.03, 0.99, 1.04, 0.98)
        for _ in range(20)
    ]
    expected = statistics.stdev((1.0, 1.03, 0.99, 1.04, 0.98)) / 5**0.5
    assert known(spread(samples)).error == pytest.approx(expected, rel=0.2)


def test_steady_noise_is_no_trend_and_a_warm_up_is() -> None:
    source = random.Random(2)
    steady = [[1 + source.gauss(0, 0.02) for _ in range(10)] for _ in range(300)]
    assert statistics.mean(map(has_trend, steady)) < 0.03
    assert has_trend([2.0, 1.7, 1.5, 1.35, 1.25, 1.2, 1.15, 1.12, 1.1, 1.09])
    # This trend is clear, but far too small to matter.
    assert not has_trend([1 + i * 1e-5 for i in range(10)])


@cases("before, after", (7, 29), (29, 7), (18, 18))
def test_another_level_is_not_steady_and_noise_is(before: int, after: int) -> None:
    source = random.Random(3)

    def level(height: float, count: int) -> list[float]:
        return [height + source.gauss(0, 0.02) for _ in range(count)]

    assert (
        statistics.mean(is_steady(level(1, before + after)) for _ in range(300)) > 0.99
    )
    assert not any(is_steady(level(1, before) + level(1.4, after)) for _ in range(100))
    assert (
        statistics.mean(
            is_steady(level(1, before) + level(0.9, after)) for _ in range(100)
        )
        < 0.05
    )
    # This change is clear, but too small to matter.
    assert is_steady(
        [1.0 + 1e-6 * i for i in range(before)]
        + [1.005 + 1e-6 * i for i in range(after)]
    )
    assert is_steady([])
