"""The text of a table's cell: exact, rounded, or as the terminal shows it."""

from __future__ import annotations

from gpubalance.numbers.units import (
    NOT_AVAILABLE,
    format_bytes,
    format_percent,
    format_rate,
    format_seconds,
)
from gpubalance.render.columns import Cell, Column

# Factors from the result's unit to the displayed one.
_SCALES = {"ms": 1e3, "µs": 1e6, "GiB": 2.0**-30, "%": 100.0}


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
