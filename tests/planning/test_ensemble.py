"""The placement of trained models, against all ways to place them."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from gpubalance.planning import ensemble
from gpubalance.planning.ensemble import Trained, place_models
from tests.support.known import known


def time_s(
    models: list[Trained], memory: list[int | None], way: tuple[int, ...]
) -> float | None:
    """How long the slowest device takes; None if it does not fit."""
    loads = []
    for device, limit in enumerate(memory):
        there = [one for one, its in zip(models, way, strict=True) if its == device]
        times_s = [one.times_s[device] for one in there]
        needed = sum(one.held[device] for one in there)
        needed += max([one.working[device] for one in there], default=0)
        if None in times_s or (limit is not None and needed > limit):
            return None
        loads.append(sum(map(known, times_s)))
    return max(loads)


def drawn(random: Random) -> tuple[list[Trained], list[int | None]]:
    """Up to six models on three devices, and the devices' memory."""
    models = []
    for _ in range(random.randint(1, 6)):
        base_s = random.uniform(1, 3)
        times_s = [random.choice([base_s, base_s, 2 * base_s, None]) for _ in range(3)]
        sizes = [[random.randint(0, 50) for _ in range(3)] for _ in range(2)]
        models.append(Trained(times_s, *sizes))
    return models, [random.choice([None, 40, 80, 120]) for _ in range(3)]


def test_no_other_way_is_sooner() -> None:
    placed = 0
    for seed in range(200):
        models, memory = drawn(Random(seed))
        ways = product(range(3), repeat=len(models))
        taken_s = [time_s(models, memory, way) for way in ways]
        best_s = min([one for one in taken_s if one is not None], default=None)
        found, tried_all = place_models(models, memory)
        assert tried_all
        assert (found is None) == (best_s is None)
        if found is not None:
            placed += 1
            assert time_s(models, memory, found) == pytest.approx(best_s, abs=1e-9)
    assert 60 < placed < 180


@pytest.mark.full
def test_all_ways_to_place_ten_models_are_tried_and_some_of_more() -> None:
    random = Random(1)
    models = []
    for _ in range(10):
        base_s = random.uniform(1, 5)
        times_s = [base_s * slow for slow in (1.0, 1.7, 2.9)]
        models.append(Trained(times_s, [1] * 3, [1] * 3))
    assert place_models(models, [None, 8, 8]).tried_all
    many = place_models(models * 4, [None] * 3)
    assert (many.devices is None, many.tried_all) == (False, False)


def test_to_give_up_is_not_to_know_that_nothing_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each device holds four of the models: five have room for 20, and two for 8."""
    monkeypatch.setattr(ensemble, "MOST_TRIED", 2000)
    model = Trained([1.0] * 5, [1] * 5, [0] * 5)
    assert place_models([model] * 21, [4] * 5) == (None, False)
    pair = Trained([1.0] * 2, [1] * 2, [0] * 2)
    assert place_models([pair] * 9, [4] * 2) == (None, True)
