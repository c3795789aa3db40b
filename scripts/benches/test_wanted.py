"""How a bench decides whether a figure is what is wanted."""

from __future__ import annotations

import re
from itertools import cycle

import pytest

from scripts.benches.wanted import Wanted, judged, judged_shares
from tests.support.known import known
from tests.support.share import Share


@pytest.mark.parametrize(
    ("ratios", "wanted", "says"),
    [
        ((1.02, 1.03, 1.04), Wanted(0.95), "6 times; wanted at least 0.95: met"),
        ((0.8, 0.81, 0.79), Wanted(0.95), "6 times; wanted at least 0.95: missed"),
        ((1.1, 1.2, 1.15), Wanted(maximum=1.5), "6 times; wanted at most 1.5: met"),
        ((1.0, 1.01, 0.99), Wanted(0.95, 1.05), "6 times; wanted 0.95 to 1.05: met"),
        ((0.9, 1.1), Wanted(1.0), "20 times; wanted at least 1: not decided"),
    ],
)
def test_a_ratio_is_measured_until_its_interval_is_clear_of_the_bound(
    ratios: tuple[float, ...], wanted: Wanted, says: str
) -> None:
    assert judged(cycle(ratios), wanted, maximum=20).endswith(says)


def test_what_is_near_the_bound_takes_longer_and_no_longer_than_it_must() -> None:
    found = re.search(
        r", (\d+) times; .*: met$",
        judged(cycle((0.97, 1.0, 1.03)), Wanted(0.98), maximum=100),
    )
    assert 6 < int(known(found)[1]) < 100


def test_shares_are_drawn_until_all_are_decided() -> None:
    drawn = []

    def draw(number: int) -> list[Share]:
        drawn.append(number)
        return [Share(0, 100), Share(92, 100)]

    found = judged_shares(draw, (Wanted(maximum=0.05), Wanted(0.9)), maximum=32)
    assert found == ["0.0% of 1600 (met)", "92.0% of 1600 (met)"]
    assert drawn == list(range(16))


@pytest.mark.parametrize(("count", "of"), [(0, 200), (11, 200), (184, 200), (200, 200)])
def test_a_shares_interval_is_wilsons(count: int, of: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    wilson = stats.binomtest(count, of).proportion_ci(method="wilson")
    assert Share(count, of).interval == pytest.approx(
        (wilson.low, wilson.high), abs=1e-4
    )
