"""A report as text, in Markdown and as CSV, and what stands around a result's tables."""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gpubalance.guide import read_chapter
from gpubalance.render.columns import Cell, Column
from gpubalance.render.independent import independent_summary
from gpubalance.render.layers import layers_summary
from gpubalance.render.plan import plan_headline, plan_summary
from gpubalance.render.probe import probe_headline, probe_summary
from gpubalance.render.queue import queue_summary
from gpubalance.render.report.tables import Table, tables_of
from gpubalance.render.run import run_headline, run_summary
from gpubalance.render.table import BLANK, Paragraph, TextTable, short
from gpubalance.results.records import Reported
from gpubalance.results.subject import ReportSubject, warnings_of
from gpubalance.text import clean

# By the kind of the result, as are the headlines.
_SUMMARIES: dict[str, Callable[[Any], Iterator[Paragraph]]] = {
    "probe": probe_summary,
    "plan": plan_summary,
    "run": run_summary,
    "independent": independent_summary,
    "layers": layers_summary,
    "queue": queue_summary,
}
# Of these a terminal may show first what the user's input pipeline gives.
_HEADLINES: dict[str, Callable[[Any], str]] = {
    "probe": probe_headline,
    "plan": plan_headline,
    "run": run_headline,
}
_CHAPTERS = ("numbers", "batch")
_TABLE = re.compile(
    r"(?m)^(?:## (.*)|(.*):)\n\n(?:[^#|\n].*\n+)*\| number \| formula "
    r"\|.*\n\|[-|]+\|\n((?:\|.*\|\n)+)"
)


class Answer(NamedTuple):
    """The sentence for a reader who stops after ten seconds, and the others with their table."""

    headline: str
    parts: tuple[str | TextTable, ...]


def summary_of(result: Reported) -> Iterator[Paragraph]:
    """What a terminal shows of a result."""
    return _SUMMARIES[result.kind](result)


def answer_of(result: Reported) -> Answer:
    """The same without pictures, beginning with what the devices gave."""
    parts = []
    for part in summary_of(result):
        if isinstance(part, str | TextTable) and part not in ("", BLANK):
            parts.append(part)
    headline_of = _HEADLINES.get(result.kind)
    headline = headline_of(result) if headline_of else str(parts[0])
    parts.remove(headline)
    return Answer(headline, tuple(parts))


class Formula(NamedTuple):
    """A number, its formula in the signs of `terms`, and how it is measured or whence it comes."""

    number: str
    formula: str
    meaning: str


def terms() -> str:
    """What the signs in the formulas are."""
    paragraphs = read_chapter(_CHAPTERS[0]).text.split("\n\n")
    return " ".join(paragraphs[2].split())


def groups() -> Iterator[tuple[str, list[Formula]]]:
    """Each table of formulas under its title."""
    for chapter in _CHAPTERS:
        for title, lead, rows in _TABLE.findall(read_chapter(chapter).text):
            formulas = []
            for row in rows.splitlines():
                cells = re.split(r"(?<!\\) \| ", row.strip("| "))
                formulas.append(Formula(*[cell.replace(r"\|", "|") for cell in cells]))
            yield (title or lead).replace("`", ""), formulas


_SPECIAL = re.compile(r"([\\`*_\[\]~|])")
_LONGEST = 500  # characters of a text
# These begin a formula, also in their wide forms: at the start of a cell, and after the characters
# that separate cells in the spreadsheets of other countries.
_FORMULA = re.compile(r"(^|[;,|])(?=[=+\-@＝＋－＠])")


def csv_text(subjects: Sequence[ReportSubject]) -> str:
    """A table for each kind of record, of all subjects, with an empty line between two.

    Columns are named as in the result, with units in their names. Unknown values are empty. Text
    that a spreadsheet would read as a formula begins with an apostrophe.
    """
    tables = defaultdict[str, list[dict[str, Cell]]](list)
    for subject in subjects:
        for table in tables_of(subject):
            first: dict[str, Cell] = {
                "table": table.kind.id,
                "file": subject.name,
                "kind": subject.kind,
                "created": subject.result.created,
            }
            names = [column.key for column in table.columns]
            for row in table.rows:
                tables[table.kind.id].append(first | dict(zip(names, row, strict=True)))
    return "\n\n".join(map(_csv_table, tables.values()))


def _csv_table(rows: Sequence[Mapping[str, Cell]]) -> str:
    columns: dict[str, None] = {}
    for row in rows:
        columns |= dict.fromkeys(row)
    file = io.StringIO()
    writer = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_csv_cell(row.get(name)) for name in columns])
    return file.getvalue().rstrip("\n")


def _csv_cell(cell: Cell) -> str | int | float | None:
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return spreadsheet_text(cell) if isinstance(cell, str) else cell


def spreadsheet_text(text: str) -> str:
    """The text, with an apostrophe where a spreadsheet would begin a formula."""
    return _FORMULA.sub(r"\1'", clean(text, _LONGEST))


def markdown(subjects: Sequence[ReportSubject]) -> str:
    """One document for all results, ending with what the words in their tables mean."""
    lines: list[str] = []
    for subject in subjects:
        lines += _section(subject)
    lines += _glossary(subjects)
    return "\n".join(lines).rstrip("\n")


def _glossary(subjects: Sequence[ReportSubject]) -> Iterator[str]:
    """The formula of each column, the first of its name; those of `layers` for its results only."""
    has_layers = any(subject.kind == "layers" for subject in subjects)
    labels: set[str] = set()
    for subject in subjects:
        for table in _short_tables(subject):
            labels.update(column.label for column in table.columns)
    yield "## What the words mean"
    yield ""
    yield markdown_text(terms())
    yield ""
    for title, formulas in groups():
        if title.endswith("(layers)") and not has_layers:
            continue
        for formula in formulas:
            if formula.number in labels:
                labels.remove(formula.number)
                number, term, meaning = map(markdown_text, formula)
                yield f"- **{number}**, {term}: {meaning}"


def _short_tables(subject: ReportSubject) -> list[Table]:
    return [table for table in tables_of(subject) if not table.kind.long]


def _section(subject: ReportSubject) -> Iterator[str]:
    answer = answer_of(subject.result)
    yield f"## {markdown_text(subject.name)}: {markdown_text(answer.headline)}"
    yield ""
    for part in answer.parts:
        if isinstance(part, TextTable):
            yield from _grid(
                [list(map(markdown_cell, row)) for row in part.rows], part.left
            )
        else:
            yield markdown_text(part)
            yield ""
    for warning in warnings_of(subject.result):
        code, message, remedy = map(
            markdown_text, (warning.code, warning.message, warning.next)
        )
        yield f"- **warning {code}**: {message} → {remedy}"
        yield ""
    for table in _short_tables(subject):
        yield f"### {markdown_text(table.kind.title)}"
        yield ""
        heads = [markdown_cell(_head(column)) for column in table.columns]
        yield from _grid(*table.grid(_cell, heads))


def _head(column: Column) -> str:
    """The title, with the unit if `short` leaves it out."""
    if column.unit in ("s", "ms", "µs", "GiB", "%"):
        return column.label
    return column.head


def _cell(cell: Cell, column: Column) -> str:
    """The cell's text. Only texts are escaped, so that a number below 0 keeps its sign."""
    shown = short(cell, column)
    return markdown_cell(shown) if isinstance(cell, str) else shown


def _grid(rows: Sequence[Sequence[str]], left: Sequence[int]) -> Iterator[str]:
    heads, *others = rows
    sides = [":--" if column in left else "--:" for column in range(len(heads))]
    for cells in (heads, sides, *others):
        yield f"| {' | '.join(cells)} |"
    yield ""


def markdown_cell(text: str) -> str:
    """Text for a table's cell, which begins no formula: people paste tables into spreadsheets."""
    return markdown_text(spreadsheet_text(text))


def markdown_text(text: str) -> str:
    """The text with everything escaped that Markdown and HTML interpret."""
    plain = clean(text, _LONGEST)
    for sign, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        plain = plain.replace(sign, entity)
    return _SPECIAL.sub(r"\\\1", plain)
