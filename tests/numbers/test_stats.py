"""Statistics, held against what is known of them."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubalance.numbers.stats import half_width, has_shift, has_trend, interval95, mad, median

times = st.lists(st.floats(0.001, 100), min_size=1, max_size=60)


@given(times)
def test_the_interval_holds_the_median(samples: list[float]) -> None:
    interval = interval95(samples)
    if len(samples) < 3:
        assert interval is None
    else:
        assert interval is not None
        assert interval[0] <= median(samples) <= interval[1]


@given(times, st.floats(0.01, 100))
def test_scaling_the_samples_scales_everything(samples: list[float], factor: float) -> None:
    scaled = [factor * s for s in samples]
    assert mad(scaled) == pytest.approx(factor * mad(samples), rel=1e-6, abs=1e-9)
    width, other = half_width(samples), half_width(scaled)
    assert (width is None) == (other is None)
    if width is not None:
        assert other == pytest.approx(width, rel=1e-6, abs=1e-9)


def coverage(correlation: float) -> float:
    """How often the interval holds the true median, for AR(1) samples of that correlation."""
    source, hits, runs = random.Random(1), 0, 400
    for _ in range(runs):
        value, samples = source.gauss(0, 1), []
        for _ in range(60):
            value = correlation * value + (1 - correlation**2) ** 0.5 * source.gauss(0, 1)
            samples.append(10 + value)
        low, high = interval95(samples) or (0, 0)
        hits += low <= 10 <= high
    return hits / runs


def test_the_interval_covers_as_it_says() -> None:
    assert coverage(0.0) == pytest.approx(0.95, abs=0.035)
    # Correlated samples, as step times are: batch means keep most of the promise, plain ones would be at 0.68.
    assert coverage(0.5) > 0.8


def test_steady_noise_is_no_trend_and_a_warm_up_is() -> None:
    source = random.Random(2)
    steady = [[1 + source.gauss(0, 0.02) for _ in range(10)] for _ in range(300)]
    assert statistics.mean(map(has_trend, steady)) < 0.03
    assert has_trend([2.0, 1.7, 1.5, 1.35, 1.25, 1.2, 1.15, 1.12, 1.1, 1.09])
    # Clear, but far too small to matter.
    assert not has_trend([1 + i * 1e-5 for i in range(10)])


@pytest.mark.parametrize(("before", "after"), [(7, 29), (29, 7), (18, 18)])
def test_another_level_is_a_shift_and_noise_is_none(before: int, after: int) -> None:
    source = random.Random(3)

    def level(height: float, count: int) -> list[float]:
        return [height + source.gauss(0, 0.02) for _ in range(count)]

    assert statistics.mean(has_shift(level(1, before + after)) for _ in range(500)) < 0.01
    assert statistics.mean(has_shift(level(1, before) + level(1.4, after)) for _ in range(100)) == 1
    assert statistics.mean(has_shift(level(1, before) + level(0.9, after)) for _ in range(100)) == 1
    # Clear, but too small to matter.
    assert not has_shift([1.0 + 1e-6 * i for i in range(before)] + [1.01 + 1e-6 * i for i in range(after)])
    assert not has_shift([])
