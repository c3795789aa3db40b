"""A ratio's interval and verdict.

They are held against laws, against scipy's Welch test, and against drawn runs.
"""

from __future__ import annotations

import pytest

from tests.support.comparisons import called_different


@pytest.mark.parametrize(
    "name",
    ["gtx1080ti-gtx1080", pytest.param("quick-pair", marks=pytest.mark.campaign)],
)
def test_runs_of_the_same_are_no_different_and_3_percent_is_found(name: str) -> None:
    """Runs of the same are called no different and three per cent is found.

    The campaign of scripts/bench, with fewer draws.
    """
    same, slower = called_different(name, count=60)
    assert same.part <= 0.05
    assert slower.part >= 0.9


@pytest.mark.full
def test_runs_that_wander_are_called_no_different_either() -> None:
    same, _ = called_different("gtx1080ti-gtx1080", count=60, correlation=0.9)
    assert same.part <= 0.05
