"""Packs of values of several types: each type's are those that it would have alone."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from gpubalance.planning.packs import packs_of

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


def test_a_pack_ends_with_the_value_that_fills_it() -> None:
    values = [("float32", 100), ("float16", 50)] * 4
    assert packs_of(values, 400) == [[7, 5], [6], [4, 2, 0], [3, 1]]
