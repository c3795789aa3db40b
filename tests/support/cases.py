"""`@cases("batch, fits", (8, True), (16, False))`: a test for each row of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def cases(
    names: str,
    *rows: Any,
    ids: Iterable[str | int] | Callable[[Any], object] | None = None,
) -> pytest.MarkDecorator:
    """Has pytest call a test with each row, a value for each of the names."""
    return pytest.mark.parametrize(names, rows, ids=ids)


def full(*row: Any) -> Any:
    """A row that only the full tests have."""
    return pytest.param(*row, marks=pytest.mark.full)


def campaign(*row: Any) -> Any:
    """A row that only a campaign has."""
    return pytest.param(*row, marks=pytest.mark.campaign)
