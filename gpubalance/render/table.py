"""Columns of text, as wide as their longest cell."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

# Summaries are made for this width; a wider terminal gets no longer lines.
WIDTH = 80


def prose(text: str, width: int, indent: str = "") -> list[str]:
    """A sentence wrapped to the width; the lines after the first are indented."""
    return textwrap.wrap(
        text,
        max(20, width),
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_on_hyphens=False,
        break_long_words=False,
    )


def table_or_prose(rows: Sequence[Sequence[str]], width: int, *, left: Sequence[int] = (0,)) -> list[str]:
    """A table whose first row is its head, or one sentence for each row where the width does not hold the table.

    A sentence begins with the first cell and those without a head; `head cell` of each other follows.
    """
    lines = table(rows, left=left)
    if max(map(len, lines)) <= width:
        return lines
    heads, *body = rows
    sentences = []
    for row in body:
        named = [(head, cell) for i, (head, cell) in enumerate(zip(heads, row, strict=True)) if i and head and cell]
        whose = " ".join(
            cell for i, (head, cell) in enumerate(zip(heads, row, strict=True)) if (not i or not head) and cell
        )
        sentences += prose(f"{whose}: {', '.join(f'{head} {cell}' for head, cell in named)}", width)
    return sentences


def table(rows: Sequence[Sequence[str]], *, left: Sequence[int] = (0,), indent: str = "") -> list[str]:
    """Lines with aligned columns: the columns in `left` to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines


def shorten(text: str, width: int) -> str:
    """The text, cut to a width with an ellipsis."""
    return text if len(text) <= width else text[: width - 1] + "…"


def shorten_front(text: str, width: int) -> str:
    """The text, its beginning cut off with an ellipsis to a width of at least 2."""
    return text if len(text) <= width else "…" + text[-max(1, width - 1) :]
