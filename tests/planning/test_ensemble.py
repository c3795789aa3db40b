"""The placement of trained models, against all ways to place them."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubalance.planning import ensemble
from gpubalance.planning.ensemble import Trained, place_models
from tests.support.known import known

_MODELS = st.lists(
    st.tuples(
        st.lists(st.none() | st.floats(0.01, 10.0), min_size=3, max_size=3),
        st.lists(st.integers(0, 50), min_size=3, max_size=3),
        st.lists(st.integers(0, 50), min_size=3, max_size=3),
    ),
    min_size=1,
    max_size=6,
)


def time_s(
    models: list[Trained], memory: list[int | None], way: tuple[int, ...]
) -> float | None:
    """How long the slowest device takes; None if it does not fit."""
    loads = [0.0] * len(memory)
    for one, device in zip(models, way, strict=True):
        seconds = one.times_s[device]
        if seconds is None:
            return None
        loads[device] += seconds
    for device, limit in enumerate(memory):
        there = [one for one, its in zip(models, way, strict=True) if its == device]
        needed = sum(one.held[device] for one in there) + max(
            (one.working[device] for one in there), default=0
        )
        if limit is not None and needed > limit:
            return None
    return max(loads)


@given(_MODELS, st.lists(st.none() | st.integers(0, 150), min_size=3, max_size=3))
def test_no_other_way_is_sooner(
    drawn: list[tuple[list[float | None], list[int], list[int]]],
    memory: list[int | None],
) -> None:
    models = [Trained(*one) for one in drawn]
    ways = {
        way: time_s(models, memory, way)
        for way in product(range(3), repeat=len(models))
    }
    best = min(
        (seconds for seconds in ways.values() if seconds is not None), default=None
    )
    found, tried_all = place_models(models, memory)
    assert tried_all
    assert (found is None) == (best is None)
    assert found is None or abs((ways[found] or 0.0) - (best or 0.0)) < 1e-9


@pytest.mark.full
def test_ten_models_on_three_devices_are_placed_exactly() -> None:
    random = Random(1)
    bases_s = [random.uniform(1, 5) for _ in range(10)]
    models = [
        Trained([base_s * slow for slow in (1.0, 1.7, 2.9)], [1] * 3, [1] * 3)
        for base_s in bases_s
    ]
    found = known(place_models(models, [None, 8, 8]).devices)
    best = min(
        seconds
        for way in product(range(3), repeat=10)
        if (seconds := time_s(models, [None, 8, 8], way))
    )
    assert time_s(models, [None, 8, 8], found) == best
    # It ends with many models
    many = place_models(models * 4, [None, None, None])
    assert many.devices is not None
    assert not many.tried_all


def test_to_give_up_is_not_to_know_that_nothing_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each device holds four of the models: five have room for 20, and two for 8."""
    monkeypatch.setattr(ensemble, "MOST_TRIED", 2000)
    model = Trained([1.0] * 5, [1] * 5, [0] * 5)
    assert place_models([model] * 21, [4] * 5) == (None, False)
    pair = Trained([1.0] * 2, [1] * 2, [0] * 2)
    assert place_models([pair] * 9, [4] * 2) == (None, True)
