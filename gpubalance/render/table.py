"""What a command prints: sentences, tables and pictures, as lines of a terminal's width."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rich.cells import cell_len, set_cell_size

from gpubalance.numbers.units import (
    NOT_AVAILABLE,
    format_bytes,
    format_percent,
    format_rate,
    format_seconds,
)
from gpubalance.render.columns import Cell, Column, columns_of
from gpubalance.results.common import Warning_
from gpubalance.settings.batch_split import share_text
from gpubalance.settings.device import Device
from gpubalance.settings.record import Record

# Summaries are made for this width; a wider terminal gets no longer lines.
WIDTH = 80

CUT_SHORT = "This was cut short: the figures are of what was measured until then."
BLANK = "\n"  # an empty line; an empty text is no line
_TICKS = "▁▂▃▄▅▆▇█"
# Values that differ by less than this are drawn flat, as noise has no shape.
_FLAT = 0.02
# Factors from the result's unit to the displayed one.
_SCALES = {"ms": 1e3, "µs": 1e6, "GiB": 2.0**-30, "%": 100.0}
_NAME_WIDTH = 22


class TextTable(NamedTuple):
    """A table's rows, the head first; the columns in `left` are aligned to the left."""

    rows: Sequence[Sequence[str]]
    left: Sequence[int] = (0, 1)


# A sentence, which may be indented, a table, or a function that draws a picture of some width.
Paragraph = str | TextTable | Callable[[int], list[str]]


def summary(
    paragraphs: Iterable[Paragraph],
    warnings: Sequence[Warning_],
    next_command: str = "",
    script: Sequence[str] = (),
    width: int = WIDTH,
    typed: Callable[[str], str] = str,
) -> str:
    """What a command prints at its end.

    These are the paragraphs of a result's summary, its warnings, the next command, and a training
    script's lines. `typed` returns a remedy with its commands as this user types them.
    """
    lines = lines_of(paragraphs, width) + warning_lines(warnings, width, typed)
    if next_command:
        lines += ["", f"next: {next_command}"]
    if len(script) == 1:
        lines.append("or train with it:")
    elif script:
        lines.append("or, after `import gpubalance`, train your own model with it:")
    lines += [f"  {line}" for line in script]
    return "\n".join(lines)


def warning_lines(
    warnings: Sequence[Warning_], width: int = WIDTH, typed: Callable[[str], str] = str
) -> list[str]:
    """An empty line, then each warning's code, message and remedy; those of one kind are joined."""
    by_remedy: dict[tuple[str, str], list[str]] = {}
    for warning in warnings:
        by_remedy.setdefault((warning.code, warning.next), []).append(warning.message)
    lines = []
    if by_remedy:
        lines.append("")
    for (code, remedy), messages in by_remedy.items():
        lines += prose(f"warning {code}: {'; '.join(messages)}", width)
        # Paths and flags stay whole, so that they can be copied.
        first, *others = prose(typed(remedy), width - 4) or [""]
        lines.append(f"  → {first}")
        lines += [f"  {line}" for line in others]
    return lines


def lines_of(paragraphs: Iterable[Paragraph], width: int = WIDTH) -> list[str]:
    """The lines of a terminal of that width."""
    lines: list[str] = []
    for paragraph in paragraphs:
        if paragraph == BLANK:
            lines.append("")
        elif isinstance(paragraph, TextTable):
            lines += table(paragraph.rows, left=paragraph.left, width=width)
        elif isinstance(paragraph, str):
            text = paragraph.lstrip(" ")
            indent = " " * (len(paragraph) - len(text))
            lines += prose(text, width, indent)
        else:
            lines += paragraph(width)
    return lines


def prose(
    text: str, width: int, indent: str = "", hanging: str | None = None
) -> list[str]:
    """A sentence wrapped to the width, though not behind a ±; lines after the first are indented.

    Words stay whole, as a path that is cut in two can't be copied.
    """
    if hanging is None:
        hanging = f"{indent}  "
    lines = textwrap.wrap(
        text.replace("± ", "±\xa0"),
        max(20, width),
        initial_indent=indent,
        subsequent_indent=hanging,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return [line.replace("\xa0", " ") for line in lines]


def table(
    rows: Sequence[Sequence[str]],
    *,
    left: Sequence[int] = (0,),
    indent: str = "",
    width: int | None = None,
) -> list[str]:
    """Lines with aligned columns, those in `left` to the left.

    The first row is the head, and a row of one cell a heading. If the lines do not fit in `width`,
    each row becomes a sentence.
    """
    full_rows = [row for row in rows if len(row) > 1]
    widths = [max(map(cell_len, column)) for column in zip(*full_rows, strict=True)]
    lines = []
    for row in rows:
        cells = []
        for place, (cell, cell_width) in enumerate(zip(row, widths, strict=False)):
            cells.append(aligned(cell, cell_width, left=place in left))
        lines.append((indent + "  ".join(cells)).rstrip())
    if width is None or max(map(cell_len, lines)) <= width:
        return lines
    heads, *others = rows
    sentences = []
    for row in others:
        sentences += prose(_row_sentence(heads, row), width)
    return sentences


def aligned(text: str, width: int, *, left: bool = True) -> str:
    """The text in a column of that width, at its left or its right.

    A Chinese character or an emoji takes two of a terminal's columns, so `len` does not count them.
    """
    space = " " * (width - cell_len(text))
    return text + space if left else space + text


def _row_sentence(heads: Sequence[str], row: Sequence[str]) -> str:
    """Begins with the first cell and those without a head; `head cell` follows for the others."""
    names = [row[0]]
    figures = []
    for head, cell in zip(heads[1:], row[1:], strict=False):
        if cell and head:
            figures.append(f"{head} {cell}")
        elif cell:
            names.append(cell)
    parts = " ".join(names), ", ".join(figures)
    return ": ".join(filter(None, parts))


def sparkline(values: Sequence[float], *, minimum: float | None = None) -> str:
    """A tick for each value, from the smallest (or `minimum`) to the largest; flat within 2 %."""
    if not values:
        return ""
    if minimum is None:
        minimum = min(values)
    top = max(values)
    highest = len(_TICKS) - 1
    if top - minimum <= _FLAT * abs(top):
        return _TICKS[len(_TICKS) // 2] * len(values)
    heights = [round((value - minimum) / (top - minimum) * highest) for value in values]
    return "".join(_TICKS[height] for height in heights)


def shorten(text: str, width: int) -> str:
    """The text, cut at its end to a width, with an ellipsis."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1) + "…"


def shorten_front(text: str, width: int) -> str:
    """The text, cut at its beginning to a width of at least 2, with an ellipsis."""
    if cell_len(text) <= width:
        return text
    end = text
    while end and cell_len(end) >= width:
        end = end[1:]
    return f"…{end}"


def exact(cell: Cell, column: Column) -> str:
    """The number in the column's unit, with all seven digits that a result keeps."""
    if cell is None:
        return NOT_AVAILABLE
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, str):
        return cell
    value = cell
    if column.unit in _SCALES:
        value = cell * _SCALES[column.unit]
    if isinstance(value, int) or value == 0 or abs(value) >= 1e7:
        return f"{value or 0:.0f}"  # never -0
    return f"{value:.7g}"


def rounded(cell: Cell, column: Column) -> str:
    """The number in the column's unit with four digits: 54.75, 5882 or 12345. Whole ones stay."""
    text = exact(cell, column)
    if cell is None or isinstance(cell, (bool, str)):
        return text
    if isinstance(cell, int) and column.unit not in _SCALES:
        return text
    value = float(text)
    if abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{value:.4g}"


def short(cell: Cell, column: Column) -> str:
    """The number as the terminal shows it, with its own unit if it is a time or a size."""
    if cell is None or isinstance(cell, (bool, str)):
        return exact(cell, column)
    if column.unit in ("s", "ms", "µs"):
        return format_seconds(cell)
    if column.unit == "GiB":
        return format_bytes(round(cell))
    if column.unit == "%":
        return format_percent(cell, 1)
    if column.unit == "samples/s" and cell:  # 0 is a plain 0, without digits
        return format_rate(cell)
    if column.unit == "×":
        return f"{cell:.3f}"
    if isinstance(cell, int):
        return str(cell)
    return f"{cell or 0:.4g}"


# What stands before a record's figures: a text of the record for each head.
Leads = Mapping[str, Callable[[Any], str]]


def names_of(devices: Sequence[Device]) -> Callable[[Any], str]:
    """What leads a row of a table of devices, with its name."""
    return lambda record: shorten(devices[record.device].name, _NAME_WIDTH)


def batch_of(record: Any) -> str:
    """What leads a row with its batch: `820`, or `1640 = 2×820`."""
    return share_text(record.batch, record.micro_batch)


def device_table(
    devices: Sequence[Device], records: Sequence[Any], leads: Leads
) -> TextTable:
    """A row for each record: its device, its leads, and its fields that have a brief name.

    Beside compute stands how much of the step it is. Names, which have no head, make room for the
    others; their ends are kept, which tell one model from another.
    """
    columns = [column for column in columns_of(type(records[0])) if column.brief]
    rows = [["device", *leads]]
    rows[0] += [column.brief for column in columns]
    for record in records:
        row = [devices[record.device].label]
        row += [text_of(record) for text_of in leads.values()]
        row += [_figure(column, record) for column in columns]
        rows.append(row)
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    excess = sum(widths) + 2 * (len(widths) - 1) - WIDTH
    if excess > 0 and "" in leads:
        for row in rows:
            row[1] = shorten_front(row[1], widths[1] - excess)
    return TextTable(rows)


def _figure(column: Column, record: Record) -> str:
    if getattr(record, "batch", None) == 0:
        return ""
    text = short(column.value(record), column)
    part = getattr(record, "utilisation", None)
    if column.key == "compute_s" and part is not None:
        text += f" ({format_percent(part)})"
    return text
