"""The even split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubalance.planning.split import even_split, split_text


@given(st.integers(1, 64).flatmap(lambda n: st.tuples(st.integers(n, 10**6), st.just(n))))
def test_shares_are_equal_but_for_one_sample_and_sum_up(case: tuple[int, int]) -> None:
    global_batch, replicas = case
    shares = even_split(global_batch, replicas)
    assert sum(shares) == global_batch
    assert len(shares) == replicas
    assert max(shares) - min(shares) <= 1


def test_fewer_samples_than_devices_can_not_be_shared() -> None:
    with pytest.raises(ValueError, match="3 samples"):
        even_split(3, 4)


def test_a_split_says_micro_batches_where_there_are_any() -> None:
    assert split_text((1640, 568)) == "1640/568"
    assert split_text([1640, 568], (1640, 568)) == "1640/568"
    assert split_text((1640, 568), [820, 568]) == "1640/568 in micro-batches 820/568"
