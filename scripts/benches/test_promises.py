"""What is promised of drawn runs holds: the campaigns of scripts/bench, with fewer draws."""

from __future__ import annotations

import pytest

from scripts.benches.comparisons import promises
from tests.support.cases import cases


@cases("count, correlation", (12, 0.7), pytest.param(54, 0.7, marks=pytest.mark.full))
def test_what_is_promised_of_samples_holds(count: int, correlation: float) -> None:
    kept = promises(count, correlation, draws=500)
    assert kept.covered.part >= 0.92
    assert kept.called_different.part <= 0.05
    assert kept.found.part >= 0.9
    assert kept.called_unsteady.part <= 0.05
