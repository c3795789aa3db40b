"""Statistics, held against what is known of them."""

from __future__ import annotations

from tests.support.cases import cases
from tests.support.comparisons import promises


@cases("count, correlation", (12, 0.0), (12, 0.7), (24, 0.5), (54, 0.7))
def test_what_is_promised_of_samples_holds(count: int, correlation: float) -> None:
    """The rows of scripts/bench compare, with fewer draws."""
    kept = promises(count, correlation, draws=500)
    assert kept.covered.part >= 0.92
    assert kept.called_different.part <= 0.05
    assert kept.found.part >= 0.9
    assert kept.called_unsteady.part <= 0.05
