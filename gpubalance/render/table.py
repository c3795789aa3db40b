"""Columns of text, as wide as their longest cell."""

from __future__ import annotations

from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]], *, left: Sequence[int] = (0,), indent: str = "") -> list[str]:
    """Lines with aligned columns: those in `left` to the left, the others, numbers, to the right."""
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
    """The text, its beginning cut off to a width (of 2 at least) with an ellipsis."""
    return text if len(text) <= width else "…" + text[-max(1, width - 1) :]
