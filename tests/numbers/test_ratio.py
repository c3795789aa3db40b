"""A ratio's interval and verdict.

They are held against laws, against scipy's Welch test, and against drawn runs.
"""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubalance.numbers.ratio import MATTERS, mean_ratio, ratio, ratio_of_sums
from gpubalance.numbers.stats import interval_of_sum
from tests.support.cases import cases
from tests.support.comparisons import called_different
from tests.support.known import known

times = st.lists(st.floats(0.001, 100), min_size=3, max_size=40)


def noisy(count: int, seed: int, noise: float = 0.02) -> list[float]:
    source = random.Random(seed)
    return [source.gauss(1.0, noise) for _ in range(count)]


@given(times, times, st.floats(0.5, 2))
def test_the_other_way_round_it_is_the_inverse(
    a: list[float], b: list[float], value: float
) -> None:
    there = ratio(value, a, b)
    back = ratio(1 / value, b, a)
    assert there.value * back.value == pytest.approx(1)
    low, high = known(there.ci95)
    assert low * known(back.ci95)[1] == pytest.approx(1)
    assert low <= value <= high
    assert there.detectable == pytest.approx(back.detectable)


def test_the_verdict_the_other_way_round_is_the_opposite() -> None:
    a = noisy(40, 1)
    b = noisy(40, 2)
    assert ratio(1.03, a, b).verdict == "faster"
    assert ratio(1 / 1.03, b, a).verdict == "slower"
    assert (
        ratio(1.001, a, b).verdict == ratio(1 / 1.001, b, a).verdict == "no difference"
    )


@given(
    st.integers(0, 10**6),
    st.integers(3, 60),
    st.floats(0.01, 100),
    st.floats(0.01, 100),
)
def test_units_do_not_matter(seed: int, count: int, one: float, two: float) -> None:
    a = noisy(count, seed)
    b = noisy(count, seed + 1)
    plain = ratio(1.0, a, b)
    scaled = ratio(1.0, [one * t for t in a], [two * t for t in b])
    assert scaled.ci95 == pytest.approx(known(plain.ci95), rel=1e-6)


def zigzag(values: list[float]) -> list[float]:
    """The values reordered, high and low in turns, so that none is like the one before."""
    ordered = sorted(values)
    return [
        ordered[i // 2] if i % 2 else ordered[-1 - i // 2] for i in range(len(ordered))
    ]


@cases("first, second", (10, 10), (4, 9), (40, 12))
def test_for_independent_samples_it_is_scipys_welch_test_of_medians(
    first: int, second: int
) -> None:
    """Where samples do not follow each other it is SciPy's Welch test of medians."""
    stats = pytest.importorskip("scipy.stats")
    a = zigzag(noisy(first, 1))
    b = zigzag(noisy(second, 2, 0.05))
    found = known(ratio(1.0, a, b).ci95)
    welch = stats.ttest_ind(
        [math.log(t) for t in a], [math.log(t) for t in b], equal_var=False
    )
    interval = welch.confidence_interval(0.95)
    # A normal median's error is √(π/2) of the mean's. The quantiles of more than 19 degrees of
    # freedom are those of 19.
    expected = (interval.high - interval.low) / 2 * math.sqrt(math.pi / 2)
    assert expected * 0.999 <= math.log(found[1]) == pytest.approx(expected, rel=0.03)


def test_a_step_time_that_wanders_is_known_less_well() -> None:
    source = random.Random(3)
    value = 0.0
    wandering = []
    for _ in range(60):
        value = 0.9 * value + source.gauss(0, 0.01)
        wandering.append(1 + value)
    shuffled = source.sample(wandering, len(wandering))
    wide, narrow = (known(ratio(1.0, of, of).ci95) for of in (wandering, shuffled))
    assert math.log(wide[1]) > 2 * math.log(narrow[1])


def test_a_mean_of_ratios_is_better_known_than_one() -> None:
    parts = [(1.02, noisy(30, 2 * i), noisy(30, 2 * i + 1)) for i in range(9)]
    one = mean_ratio(parts[:1])
    nine = mean_ratio([*parts[:8], (1.02 * 1.1**9, *parts[8][1:])])
    assert one.ci95 == pytest.approx(ratio(*parts[0]).ci95)
    assert nine.value == pytest.approx(1.02 * 1.1)
    assert (known(nine.detectable) - MATTERS) * 2 < known(one.detectable) - MATTERS


def test_too_few_samples_have_no_verdict() -> None:
    found = ratio(1.5, [1.0, 1.1], noisy(30, 1))
    assert (found.ci95, found.detectable, found.verdict) == (None, None, None)


def test_what_has_no_noise_still_needs_to_differ_by_enough() -> None:
    still = [0.5] * 30
    assert ratio(1.002, still, still).ci95 == (1.002, 1.002)
    assert ratio(1.002, still, still).verdict == "no difference"
    assert ratio(1.006, still, still).verdict == "faster"


@pytest.mark.parametrize(
    "name",
    ["gtx1080ti-gtx1080", pytest.param("quick-pair", marks=pytest.mark.campaign)],
)
def test_runs_of_the_same_are_no_different_and_three_per_cent_is_found(
    name: str,
) -> None:
    """Runs of the same are called no different and three per cent is found.

    The campaign of scripts/bench, with fewer draws.
    """
    same, slower = called_different(name, count=60)
    assert same.part <= 0.05
    assert slower.part >= 0.9


@pytest.mark.full
def test_runs_that_wander_are_called_no_different_either() -> None:
    same, _ = called_different("gtx1080ti-gtx1080", count=60, correlation=0.9)
    assert same.part <= 0.05


@given(times, times, st.floats(0.5, 2))
def test_a_sum_of_one_is_that_one(a: list[float], b: list[float], value: float) -> None:
    assert ratio_of_sums(value, [(1000.0, a)], [(700.0, b)]).ci95 == pytest.approx(
        ratio(value, a, b).ci95
    )


@given(st.lists(st.tuples(st.floats(1, 1e4), times), min_size=1, max_size=5))
def test_a_sum_is_known_no_better_than_its_parts(
    parts: list[tuple[float, list[float]]],
) -> None:
    """Several that are known alike are known together as each is.

    The reason is that what disturbs one device may disturb all.
    """
    whole = sum(rate for rate, _ in parts)
    low, high = interval_of_sum(parts) or (math.nan, math.nan)
    assert low <= whole <= high
    again = interval_of_sum([*parts, *parts])
    assert again == pytest.approx((2 * low, 2 * high))
    assert interval_of_sum([*parts, (1.0, [1.0, 2.0])]) is None
