"""A table of a report: the numbers of the result, each shown in a suitable unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpubalance.numbers.units import NOT_AVAILABLE, format_bytes, format_rate, format_seconds

Cell = str | int | float | bool | None
Unit = Literal["", "text", "s", "ms", "µs", "GiB", "samples/s", "%", "W", "°C", "MHz", "J", "FLOP/s", "samples/J"]

# Factors from the result's unit to the displayed one.
_SCALES: dict[str, float] = {"ms": 1e3, "µs": 1e6, "GiB": 2.0**-30, "%": 100.0}


@dataclass(frozen=True)
class Column:
    """`key` is the name in the result, with its unit; `label` and `unit` are what people see."""

    key: str
    label: str
    unit: Unit = ""

    @property
    def head(self) -> str:
        """The title with its unit: `step time, ms`."""
        return f"{self.label}, {self.unit}" if self.unit not in ("", "text") else self.label

    @property
    def is_text(self) -> bool:
        """Whether the column is aligned to the left."""
        return self.unit == "text"


@dataclass(frozen=True)
class Table:
    """Rows of cells in the result's own units. Markdown leaves out `long` tables."""

    id: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    long: bool = False


def exact(cell: Cell, column: Column) -> str:
    """The number in the column's unit, with all seven digits that a result keeps."""
    if cell is None:
        return NOT_AVAILABLE
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, str):
        return cell
    value = cell * _SCALES.get(column.unit, 1.0) if column.unit in _SCALES else cell
    if isinstance(value, int) or value == 0 or abs(value) >= 1e7:
        return f"{value or 0:.0f}"
    return f"{value:.7g}"


def short(cell: Cell, column: Column) -> str:
    """The number as the terminal shows it, with its own unit if it is a time or a size."""
    if cell is None or isinstance(cell, (bool, str)):
        return exact(cell, column)
    if column.unit in ("s", "ms", "µs"):
        return format_seconds(cell)
    if column.unit == "GiB":
        return format_bytes(round(cell))
    if column.unit == "%":
        return f"{100 * cell or 0:.3g} %"
    if column.unit == "samples/s" and cell:
        return format_rate(cell)
    return str(cell) if isinstance(cell, int) else f"{cell or 0:.4g}"
