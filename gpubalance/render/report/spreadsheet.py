"""A report as CSV: every row of every table with all digits, which the first columns help to filter."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence

from gpubalance.render.fields import Cell
from gpubalance.render.report.tables import tables_of
from gpubalance.results.subject import Subject
from gpubalance.text import clean

LONGEST = 500  # characters of a text
# These begin a formula, also in their wide forms: at the start of a cell, and after the characters that separate cells
# in the spreadsheets of other countries.
_FORMULA = re.compile(r"(^|[;,|])(?=[=+\-@＝＋－＠])")
_FIRST = ("file", "kind", "created", "table")


def csv_text(subjects: Sequence[Subject]) -> str:
    """Columns are named as in the result, with units in their names; a cell is empty if its row has no such column.

    Text that a spreadsheet would read as a formula begins with an apostrophe. Unknown values are empty too.
    """
    rows: list[dict[str, Cell]] = []
    for subject in subjects:
        for table in tables_of(subject):
            head = dict(zip(_FIRST, (subject.name, subject.kind, subject.result.created, table.kind.id), strict=True))
            rows += [{**head, **dict(zip((c.key for c in table.columns), row, strict=True))} for row in table.rows]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    file = io.StringIO()
    writer = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(row.get(name)) for name in columns] for row in rows)
    return file.getvalue().rstrip("\n")


def _cell(cell: Cell) -> str | int | float | None:
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return spreadsheet_text(cell) if isinstance(cell, str) else cell


def spreadsheet_text(text: str) -> str:
    """The text, with an apostrophe where a spreadsheet would begin a formula. Numbers are no text: −1 stays one."""
    return _FORMULA.sub(r"\1'", clean(text, LONGEST))
