"""The search for what fits returns exactly that, whatever the memory function is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpubalance.planning.limit import largest_that_fits, predict_limit


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.data())
def test_exact_whatever_is_guessed(limit: int, above: int, data: st.DataObject) -> None:
    low = data.draw(st.integers(1, limit))
    guess = data.draw(st.none() | st.integers(0, 2 * 10**6))
    tried: list[int] = []

    def fits(batch: int) -> bool:
        tried.append(batch)
        return batch <= limit

    assert largest_that_fits(fits, low=low, high=limit + above, guess=guess) == limit
    assert len(tried) == len(set(tried)) <= 2 + 21
    assert all(low < batch < limit + above for batch in tried)


@given(st.integers(2, 10**6), st.integers(0, 10**12), st.integers(1, 10**9))
def test_linear_memory_is_predicted_exactly_and_then_found_in_two_tries(limit: int, base: int, slope: int) -> None:
    memory = base + slope * limit
    points = [(batch, base + slope * batch) for batch in {max(1, limit // 4), max(2, limit // 2)}]
    if len(points) < 2:
        return
    guess = predict_limit(points, memory)
    assert guess == limit
    tried: list[int] = []

    def fits(batch: int) -> bool:
        tried.append(batch)
        return base + slope * batch <= memory

    assert largest_that_fits(fits, low=max(1, limit // 2), high=2 * limit, guess=guess) == limit
    assert len(tried) <= 2


def test_a_tolerance_ends_the_search_early() -> None:
    tried: list[int] = []

    def fits(batch: int) -> bool:
        tried.append(batch)
        return batch <= 7777

    found = largest_that_fits(fits, low=1000, high=10_000, tolerance=0.01)
    assert 7777 * 0.99 <= found <= 7777
    assert len(tried) < 10


def test_memory_that_does_not_rise_predicts_nothing() -> None:
    assert predict_limit([(10, 500), (20, 500)], 1000) is None
