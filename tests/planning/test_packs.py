"""Packs of gradients: their size by arithmetic, and which values of each type are in each."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from gpubalance.planning.sync import MAX_PACK_BYTES, best_pack_bytes, packs_of

POWERS = [1 << exponent for exponent in range(16, 25)]


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
    sizes = [size for size in (*POWERS, MAX_PACK_BYTES) if size < gradient_bytes]
    min_s = min(exposed_s(size, *link) for size in sizes)
    at_once_s = exposed_s(gradient_bytes, *link)
    if best:
        assert best in sizes
        # It is a power of two.
        assert exposed_s(best, *link) <= 1.061 * min_s
        assert exposed_s(best, *link) <= at_once_s / 2
    else:
        assert best == 0
        assert 1.061 * min_s > at_once_s / 2


VALUES = st.lists(
    st.tuples(st.sampled_from(["float32", "float16", "row"]), st.integers(0, 400)),
    max_size=30,
)


def packs_by_hand(sizes: list[int], pack_bytes: int) -> list[list[int]]:
    """The packs of values of one type: the first has a quarter of the bytes."""
    packs: list[list[int]] = [[]]
    for number in range(len(sizes) - 1, -1, -1):
        fills_at = (pack_bytes or math.inf) / (4 if len(packs) == 1 else 1)
        if sum(sizes[inside] for inside in packs[-1]) >= fills_at:
            packs.append([])
        packs[-1].append(number)
    return packs if sizes else []


@given(VALUES, st.integers(0, 1000))
def test_a_types_packs_do_not_depend_on_the_other_types(
    values: list[tuple[str, int]], pack_bytes: int
) -> None:
    packs = packs_of(values, pack_bytes)
    for kind in {kind for kind, _ in values}:
        places = [place for place, (of, _) in enumerate(values) if of == kind]
        alone = packs_by_hand([values[place][1] for place in places], pack_bytes)
        expected = [[places[number] for number in pack] for pack in alone]
        assert [pack for pack in packs if values[pack[0]][0] == kind] == expected
    # A pack begins when its first value is there.
    firsts = [pack[0] for pack in packs]
    assert firsts == sorted(firsts, reverse=True)
    numbers = [number for pack in packs for number in pack]
    assert sorted(numbers) == list(range(len(values)))
