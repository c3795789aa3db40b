"""A global batch of any size in the proportion of a split."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from gpubalance.settings.batch_split import proportional_split

WEIGHTS = st.lists(st.integers(0, 1000), min_size=1, max_size=8).filter(any)


@given(st.integers(0, 10**6), WEIGHTS, st.integers(1, 20))
def test_shares_sum_up_and_each_device_with_a_weight_has_its_least(
    samples: int, weights: list[int], least: int
) -> None:
    shares = proportional_split(samples, weights, least)
    used = sum(weight > 0 for weight in weights)
    assert sum(shares) == samples
    assert all(
        share == 0 for share, weight in zip(shares, weights, strict=True) if not weight
    )
    if samples >= used * least:
        assert sum(share >= least for share in shares) == used


@given(st.integers(1, 10**6), WEIGHTS)
def test_shares_are_within_a_sample_of_the_proportion(
    most: int, weights: list[int]
) -> None:
    samples = most + sum(weights)  # so that each device's part is a sample at least
    for share, weight in zip(
        proportional_split(samples, weights), weights, strict=True
    ):
        assert abs(share - Fraction(samples * weight, sum(weights))) < 1


@given(WEIGHTS, st.integers(1, 1000))
def test_a_multiple_of_the_split_is_shared_exactly(
    weights: list[int], times: int
) -> None:
    assert proportional_split(times * sum(weights), weights) == tuple(
        times * weight for weight in weights
    )
