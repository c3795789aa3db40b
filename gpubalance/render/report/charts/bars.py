"""Rows of bars, each under its own line of text, so that labels of any length fit, even on a phone."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from gpubalance.numbers.units import three_digits
from gpubalance.render.report.charts.chart import NARROW, Drawing
from gpubalance.render.report.charts.style import HATCHES, MUTED, PAPER, figure, legend
from gpubalance.render.table import shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

_ROW_PX = 40
_HEADING_PX = 30
_REST_PX = 52  # the axis and its label
_LEGEND_PX = 24
_LETTER_PX = 7.2
_BAR = 0.42  # of a row; its text takes the rest
_SEEN = 1e-4  # of the axis: no shorter piece is in the legend
_MOST_ROWS = 100  # of a picture that one still looks at


class Key(NamedTuple):
    """The legend's name for a piece, or for a mark, which has a line's style."""

    name: str
    colour: str
    line: Literal["", "-", ":"] = ""


class Row(NamedTuple):
    """Pieces of a bar under a text at the left and one at the right; a heading has no pieces.

    The pieces follow each other from 0, each a length in the axis' unit; one below 0 goes to the left. `marks` are
    lines across the bar at their values.
    """

    left: str
    right: str
    pieces: tuple[tuple[Key, float], ...] = ()
    marks: tuple[tuple[Key, float], ...] = ()

    @property
    def is_heading(self) -> bool:
        """Whether the row is only text."""
        return not self.pieces and not self.marks

    @property
    def ends(self) -> list[float]:
        """Where the pieces begin and end."""
        return list(itertools.accumulate((length for _, length in self.pieces), initial=0.0))

    @property
    def text(self) -> str:
        """The row in words."""
        if self.is_heading:
            return f"{self.left} ({self.right}):"
        seen = [(key, value) for key, value in self.pieces if abs(value) > _SEEN * abs(self.ends[-1])]
        parts = (*(seen if len(seen) > 1 else ()), *self.marks)
        return ", ".join([f"{self.left}: {self.right}", *(f"{key.name} {three_digits(x)}" for key, x in parts)]) + ";"


def bars(rows: Sequence[Row], label: str, note: str = "") -> Drawing:
    """The rows over an axis with that label; the caption is the note and the rows in words."""
    shown = rows[:_MOST_ROWS]
    more = f" The first {len(shown)} of {len(rows)} rows are drawn." if len(rows) > len(shown) else ""
    said = " ".join(row.text for row in shown).rstrip(";:")
    return f"{note} {label[0].upper()}{label[1:]}: {said}.{more}".strip(), lambda width: _draw_rows(shown, width, label)


def _draw_rows(rows: Sequence[Row], width: int, label: str) -> Figure:
    """Draws the rows from top to bottom over one axis, which includes 0, with a legend of their keys."""
    heights = [_HEADING_PX if row.is_heading else _ROW_PX for row in rows]
    ends = [end for row in rows for end in (*row.ends, *(value for _, value in row.marks))]
    low, high = min(ends), max(ends)
    if high <= low:
        high = low + 1.0
    drawn = (piece for row in rows for piece in (*row.pieces, *row.marks))
    keys = list(dict.fromkeys(key for key, value in drawn if abs(value) > _SEEN * (high - low)))
    made, (axes,) = figure(width, sum(heights) + _REST_PX + (_LEGEND_PX if len(keys) > 1 else 0))
    axes.set_xlim(low - 0.02 * (high - low) * (low < 0), high + 0.02 * (high - low))
    top = 0.0
    for row, height in zip(rows, heights, strict=True):
        _draw(axes, row, top, height / _ROW_PX, int(width / _LETTER_PX))
        top -= height / _ROW_PX
    axes.set_ylim(top, 0.0)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False, axis="y")
    axes.axvline(0.0, color=MUTED, linewidth=0.8)
    axes.set_xlabel(label)
    if len(keys) > 1:
        legend(made, list(map(_handle, keys)), 2 if width <= NARROW and len(keys) > 3 else len(keys))
    return made


def _handle(key: Key) -> Patch | Line2D:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if key.line:
        return Line2D([], [], color=key.colour, linewidth=2.2, linestyle=key.line, label=key.name)
    return Patch(facecolor=key.colour, edgecolor=PAPER, hatch=HATCHES.get(key.colour, ""), label=key.name)


def _draw(axes: Axes, row: Row, top: float, height: float, letters: int) -> None:
    # Text is placed by the width of the axes, bars by their values.
    across = axes.get_yaxis_transform()
    weight = "bold" if row.is_heading else "normal"
    text = top - (height - 0.1 if row.is_heading else 0.44)
    left = shorten(row.left, max(8, letters - len(row.right) - 2))
    axes.text(0.0, text, left, transform=across, ha="left", va="bottom", weight=weight)
    axes.text(1.0, text, row.right, transform=across, ha="right", va="bottom")
    middle = top - 0.5 - _BAR / 2
    for (key, length), start in zip(row.pieces, row.ends, strict=False):
        if length:
            draw_bar(axes, middle, start, length, key.colour, _BAR)
    ends = [middle - _BAR / 2 - 0.05, middle + _BAR / 2]
    for key, value in row.marks:
        axes.plot([value, value], ends, color=key.colour, linewidth=2.2, linestyle=key.line)


def draw_bar(axes: Axes, middle: float, start: float, length: float, colour: str, height: float) -> None:
    """One bar; colours with a hatch have it, with an edge that sets it off."""
    edge = PAPER if colour in HATCHES else colour
    hatch = HATCHES.get(colour, "")
    axes.barh(middle, length, left=start, height=height, facecolor=colour, edgecolor=edge, hatch=hatch, linewidth=0.5)
