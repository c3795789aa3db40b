"""Where a step's time goes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubalance.planning.parts import split_step

seconds = st.floats(0.001, 10.0)


@given(
    st.integers(1, 5).flatmap(lambda n: st.lists(st.lists(seconds, min_size=n, max_size=n), min_size=1, max_size=9)),
    st.floats(0, 5),
    st.floats(0, 5),
)
def test_compute_wait_sync_and_input_add_up(computes: list[list[float]], sync: float, waited: float) -> None:
    step = max(map(max, computes)) + sync + waited
    parts = split_step(step, computes, waited)
    for compute, wait in zip(parts.compute_s, parts.wait_s, strict=True):
        assert compute + wait + parts.sync_s + parts.input_wait_s - parts.excess_s == pytest.approx(step)
        assert wait >= 0
    assert parts.sync_s >= 0
    assert parts.imbalance >= 1 - 1e-12


def test_noise_that_makes_another_replica_the_slowest_each_step_is_wait() -> None:
    parts = split_step(1.3, [[1.0, 1.2], [1.2, 1.0], [1.0, 1.2], [1.2, 1.0]], 0.0)
    assert parts.compute_s == (1.1, 1.1)
    assert parts.wait_s == pytest.approx((0.1, 0.1))
    assert parts.sync_s == pytest.approx(0.1)


def test_a_straggler_longer_than_the_step_is_told_as_excess() -> None:
    parts = split_step(1.0, [[1.2]], 0.0)
    assert parts.sync_s == 0
    assert parts.excess_s == pytest.approx(0.2)
