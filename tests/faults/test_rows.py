"""Each row of the list of faults has a test in this folder."""

from __future__ import annotations

import re
from pathlib import Path

from tests.faults.rows import ROWS


def test_each_row_has_a_test() -> None:
    """`def test_20_21_a_silent_worker…` is one of rows 20 and 21."""
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    tested = {int(row) for rows in re.findall(r"(?m)^def test_((?:\d\d_)+)", text) for row in rows.split("_") if row}
    assert list(ROWS) == list(range(1, 39))
    assert tested == set(ROWS)
