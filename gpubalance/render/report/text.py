"""A report as text, in Markdown and as CSV."""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpubalance.render.fields import Cell, Column, short
from gpubalance.render.report.tables import Table, tables_of
from gpubalance.render.report.words import answer_of, groups, terms
from gpubalance.render.table import TextTable
from gpubalance.results.subject import ReportSubject, warnings_of
from gpubalance.text import clean


def csv_text(subjects: Sequence[ReportSubject]) -> str:
    """A table for each kind of record, of all subjects, with an empty line between two.

    Columns are named as in the result, with units in their names. Unknown values are empty. Text
    that a spreadsheet would read as a formula begins with an apostrophe.
    """
    tables = defaultdict[str, list[dict[str, Cell]]](list)
    for subject in subjects:
        for table in tables_of(subject):
            first = (table.kind.id, subject.name, subject.kind, subject.result.created)
            head = dict(zip(_FIRST, first, strict=True))
            names = [column.key for column in table.columns]
            tables[table.kind.id] += [
                {**head, **dict(zip(names, row, strict=True))} for row in table.rows
            ]
    return "\n\n".join(map(_csv_table, tables.values()))


def _csv_table(rows: Sequence[Mapping[str, Cell]]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    file = io.StringIO()
    writer = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_csv_cell(row.get(name)) for name in columns] for row in rows)
    return file.getvalue().rstrip("\n")


def _csv_cell(cell: Cell) -> str | int | float | None:
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return spreadsheet_text(cell) if isinstance(cell, str) else cell


def spreadsheet_text(text: str) -> str:
    """The text, with an apostrophe where a spreadsheet would begin a formula. Numbers are no text:
    −1 stays one.
    """
    return _FORMULA.sub(r"\1'", clean(text, LONGEST))


_SPECIAL = re.compile(r"([\\`*_\[\]~|])")
LONGEST = 500  # characters of a text
# These begin a formula, also in their wide forms: at the start of a cell, and after the characters
# that separate cells in the spreadsheets of other countries.
_FORMULA = re.compile(r"(^|[;,|])(?=[=+\-@＝＋－＠])")
_FIRST = ("table", "file", "kind", "created")


def markdown(subjects: Sequence[ReportSubject]) -> str:
    """One document for all results, ending with what the words in their tables mean."""
    lines = [line for subject in subjects for line in _section(subject)]
    return "\n".join([*lines, *_words(subjects)]).rstrip("\n")


def _words(subjects: Sequence[ReportSubject]) -> Iterator[str]:
    labels = {
        column.label
        for subject in subjects
        for table in _short_tables(subject)
        for column in table.columns
    }
    yield "## What the words mean"
    yield ""
    yield markdown_text(terms())
    yield ""
    for one in (formula for _, formulas in groups() for formula in formulas):
        if one.number in labels:
            yield (
                f"- **{markdown_text(one.number)}**, {markdown_text(one.formula)}: "
                f"{markdown_text(one.meaning)}"
            )


def _short_tables(subject: ReportSubject) -> Iterator[Table]:
    return (table for table in tables_of(subject) if not table.kind.long)


def _section(subject: ReportSubject) -> Iterator[str]:
    answer = answer_of(subject.result)
    yield f"## {markdown_text(subject.name)}: {markdown_text(answer.headline)}"
    yield ""
    for part in answer.parts:
        if isinstance(part, TextTable):
            yield from _grid([map(markdown_cell, row) for row in part.rows], part.left)
        else:
            yield from (markdown_text(part), "")
    for warning in warnings_of(subject.result):
        code, message, then = (
            markdown_text(text) for text in (warning.code, warning.message, warning.next)
        )
        yield f"- **warning {code}**: {message} → {then}"
        yield ""
    for table in _short_tables(subject):
        yield f"### {markdown_text(table.kind.title)}"
        yield ""
        yield from _grid(
            *table.grid(_cell, [markdown_cell(_head(column)) for column in table.columns])
        )


def _head(column: Column) -> str:
    """The title, with the unit if `short` leaves it out."""
    return column.label if column.unit in ("s", "ms", "µs", "GiB", "%") else column.head


def _cell(cell: Cell, column: Column) -> str:
    """The cell's text. Only texts are escaped, so that a number below 0 keeps its sign."""
    shown = short(cell, column)
    return markdown_cell(shown) if isinstance(cell, str) else shown


def _grid(rows: Sequence[Iterable[str]], left: Sequence[int]) -> Iterator[str]:
    heads, *others = map(list, rows)
    sides = [":--" if column in left else "--:" for column in range(len(heads))]
    yield from (f"| {' | '.join(cells)} |" for cells in (heads, sides, *others))
    yield ""


def markdown_cell(text: str) -> str:
    """Text for a table's cell. People paste such tables into spreadsheets, so it must not begin a
    formula either.
    """
    return markdown_text(spreadsheet_text(text))


def markdown_text(text: str) -> str:
    """The text with everything escaped that Markdown and HTML interpret."""
    plain = clean(text, LONGEST).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", plain)
