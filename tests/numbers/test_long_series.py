"""Hours of timings: the verdicts on a series' level, held against all of its pairs."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubalance.numbers.stats import median, spread
from gpubalance.numbers.steady import (
    _trend,
    falling_pairs,
    has_trend,
    is_steady,
    median_slope,
)
from tests.support.cases import cases

LONG = 100_000


def slope_of_all_pairs(samples: Sequence[float]) -> float:
    logs = list(enumerate(map(math.log, samples)))
    pairs = itertools.combinations(logs, 2)
    return median([(y - x) / (j - i) for (i, x), (j, y) in pairs])


def trend_of_all_pairs(samples: Sequence[float]) -> bool:
    n = len(samples)
    if n < 4:
        return False
    pairs = list(itertools.combinations(samples, 2))
    rises = sum((y > x) - (y < x) for x, y in pairs)
    deviation = math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    slope = slope_of_all_pairs(samples)
    return (abs(rises) - 1) / deviation >= 2.576 and abs(slope) * n > 0.01


def rises_beyond_noise(samples: Sequence[float]) -> bool:
    slope = slope_of_all_pairs(samples)
    level = [sample * math.exp(-slope * i) for i, sample in enumerate(samples)]
    noise = spread(level)
    return noise is not None and abs(slope) * len(samples) >= 12.1 * noise.error


def distance(samples: Sequence[float]) -> float:
    middle = median(samples)
    return sum(abs(sample - middle) for sample in samples)


def clear_cuts(samples: Sequence[float]) -> list[int]:
    n = len(samples)
    cuts = []
    for cut in range(1, n):
        pairs = itertools.product(samples[:cut], samples[cut:])
        statistic = sum((y > x) - (y < x) for x, y in pairs)
        if abs(statistic) / math.sqrt(cut * (n - cut) * (n + 1) / 3) >= 3.5:
            cuts.append(cut)
    return cuts


def shifts_by_all_cuts(samples: Sequence[float]) -> bool:
    n = len(samples)
    cuts = clear_cuts(samples)
    if not cuts:
        return False
    cut = min(cuts, key=lambda cut: distance(samples[:cut]) + distance(samples[cut:]))
    before = median(samples[:cut])
    change = median(samples[cut:]) / before
    level = [x / before for x in samples[:cut]]
    level += [x / before / change for x in samples[cut:]]
    noise = spread(level)
    error = noise.error * n / math.sqrt(cut * (n - cut)) if noise else 0.0
    return abs(change - 1) >= 0.03 and abs(math.log(change)) >= 4 * error


def steady_by_all_pairs(samples: Sequence[float]) -> bool:
    rises = trend_of_all_pairs(samples) and rises_beyond_noise(samples)
    return not rises and not shifts_by_all_cuts(samples)


def drawn(source: random.Random, count: int) -> list[float]:
    """A series of timings, some of which follow each other, drift, or change their level."""
    noise = source.choice([0.001, 0.01, 0.05])
    rho = source.choice([0.0, 0.7])
    rise = source.choice([0.0, 0.0, source.uniform(-0.2, 0.2)])
    shift = source.choice([0.0, 0.0, source.uniform(-0.3, 0.3)])
    cut = source.randrange(count)
    digits = source.choice([2, 3, 12])  # a coarse clock has many equal timings
    wander = 0.0
    samples = []
    for place in range(count):
        wander = rho * wander + source.gauss(0, noise)
        level = 1 + rise * place / count + shift * (place >= cut)
        samples.append(round(level * math.exp(wander), digits))
    return samples


def test_the_verdicts_are_those_of_all_pairs() -> None:
    source = random.Random(57)
    verdicts = set()
    for _ in range(300):
        samples = drawn(source, source.choice([4, 5, 12, 12, 36, 60]))
        trend = trend_of_all_pairs(samples)
        steady = steady_by_all_pairs(samples)
        assert (has_trend(samples), is_steady(samples)) == (trend, steady), samples
        slope = slope_of_all_pairs(samples) if trend else None
        assert _trend(samples) == pytest.approx(slope, abs=1e-9)
        verdicts.add((trend, steady))
    assert verdicts == {(True, True), (True, False), (False, True), (False, False)}


@given(
    st.lists(
        st.floats(0.01, 100).map(partial(round, ndigits=2)), min_size=2, max_size=40
    )
)
def test_falling_pairs_and_the_slope_are_of_all_pairs(samples: list[float]) -> None:
    pairs = itertools.combinations(samples, 2)
    assert falling_pairs(np.array(samples)) == sum(y < x for x, y in pairs)
    slope = median_slope(np.log(samples))
    assert slope == pytest.approx(slope_of_all_pairs(samples), abs=1e-9)


@cases(
    "rise, shift, steady",
    (0.0, 0.0, True),
    pytest.param(0.2, 0.0, False, marks=pytest.mark.full),
    pytest.param(0.0, 0.1, False, marks=pytest.mark.full),
)
def test_a_night_of_timings_is_judged(rise: float, shift: float, steady: bool) -> None:
    """Of five thousand million pairs, which nothing may go through."""
    source = random.Random(1)
    samples = []
    for place in range(LONG):
        level = 1 + rise * place / LONG + shift * (place > 0.9 * LONG)
        samples.append(level * math.exp(source.gauss(0, 0.02)))
    assert is_steady(samples) == steady
