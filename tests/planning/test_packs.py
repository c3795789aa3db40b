"""Packs of gradients: their size by arithmetic, and which values are in each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpubalance.planning.packs import (
    LEAST_BYTES,
    MOST_BYTES,
    best_pack_bytes,
    packs_of,
    sizes_beside,
)

POWERS = [1 << exponent for exponent in range(16, 25)]
VALUES = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 1000)), max_size=30)


def exposed_s(
    pack_bytes: float, gradient_bytes: int, latency_s: float, bytes_per_s: float
) -> float:
    """What packs of that size cost: each one's latency, and the time of the last one."""
    return gradient_bytes / pack_bytes * latency_s + pack_bytes / bytes_per_s


@given(st.integers(1 << 20, 1 << 30), st.floats(1e-5, 1e-2), st.floats(1e6, 1e11))
def test_no_other_size_within_the_bounds_costs_less(
    gradient_bytes: int, latency_s: float, bytes_per_s: float
) -> None:
    link = (gradient_bytes, latency_s, bytes_per_s)
    best = best_pack_bytes(*link)
    sizes = [size for size in (*POWERS, MOST_BYTES) if size < gradient_bytes]
    least_s = min(exposed_s(size, *link) for size in sizes)
    at_once_s = exposed_s(gradient_bytes, *link)
    if best:
        assert best in sizes
        # It is a power of two.
        assert exposed_s(best, *link) <= 1.061 * least_s
        assert exposed_s(best, *link) <= at_once_s / 2
    else:
        assert 1.061 * least_s > at_once_s / 2


@given(st.sampled_from([0, *POWERS, MOST_BYTES]), st.integers(1, 1 << 30))
def test_at_most_two_other_sizes_are_tried(
    pack_bytes: int, gradient_bytes: int
) -> None:
    others = sizes_beside(pack_bytes, gradient_bytes)
    assert len(others) <= 2
    assert pack_bytes not in others
    for size in others - {0}:
        assert LEAST_BYTES <= size <= MOST_BYTES
        assert size < gradient_bytes
    if 0 in others:
        # Packs that are four times larger would be all the gradients.
        assert 4 * pack_bytes >= gradient_bytes


@given(VALUES, st.integers(0, 2000))
def test_each_value_is_in_one_pack_of_its_type(
    values: list[tuple[str, int]], pack_bytes: int
) -> None:
    packs = packs_of(values, pack_bytes)
    assert sorted(number for pack in packs for number in pack) == list(
        range(len(values))
    )
    for pack in packs:
        assert len({values[number][0] for number in pack}) == 1
        assert pack == sorted(pack, reverse=True)
        without_last = sum(values[number][1] for number in pack[:-1])
        # It ends with the value that fills it
        assert not pack_bytes or without_last <= pack_bytes


def test_the_last_values_come_first_in_a_smaller_pack() -> None:
    values = [("float32", 100)] * 8
    assert packs_of(values, 200) == [[7], [6, 5], [4, 3], [2, 1], [0]]
    assert packs_of(values, 0) == [[7, 6, 5, 4, 3, 2, 1, 0]]
    assert packs_of([], 200) == []


def test_types_do_not_share_packs() -> None:
    values = [("float32", 4), ("float16", 2), ("float32", 4)]
    assert packs_of(values, 0) == [[2, 0], [1]]
