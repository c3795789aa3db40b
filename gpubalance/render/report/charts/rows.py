"""Rows of bars over one axis, each under its own line of text, so that labels of any length fit,
even on a phone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from gpubalance.render.report.charts.chart import Drawing
from gpubalance.render.report.charts.style import HATCHES, MUTED, NARROW, PAPER, figure, legend
from gpubalance.render.table import shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW_PX = 40
_HEADING_PX = 30
_REST_PX = 52  # the axis and its label
_LETTER_PX = 7.2
_NUMBER_PX = 11  # the least width of a bar with a number in it
_BAR = 0.42  # of a row; its text takes the rest
_SEEN = 1e-4  # of the axis: no shorter bar is in the legend
_MOST_ROWS = 100  # of a picture that one still looks at


class Key(NamedTuple):
    """The legend's name for a bar, or for a mark, which has a line's style."""

    name: str
    colour: str
    line: Literal["", "-"] = ""


class Bar(NamedTuple):
    """A part of a row, in the axis' unit, from its start; to the left if the length is below 0."""

    key: Key
    start: float
    length: float
    number: str = ""


class Row(NamedTuple):
    """Bars, and `marks` across the row, under a text at the left and one at the right; a heading
    has none.
    """

    left: str
    right: str = ""
    bars: Sequence[Bar] = ()
    marks: Mapping[Key, float] = MappingProxyType({})

    @property
    def is_heading(self) -> bool:
        """Whether the row is only text."""
        return not self.bars and not self.marks

    @property
    def ends(self) -> list[float]:
        """Where bars begin and end, and where marks are."""
        return [
            0.0,
            *(end for bar in self.bars for end in (bar.start, bar.start + bar.length)),
            *self.marks.values(),
        ]


def stacked(pieces: Mapping[Key, float]) -> list[Bar]:
    """Bars of these lengths that follow each other from 0."""
    return [*map(Bar, pieces, accumulate(pieces.values(), initial=0.0), pieces.values())]


def rows_chart(rows: Sequence[Row], label: str, note: str = "") -> Drawing:
    """The rows over an axis with that label, under the note."""
    more = (
        f" The first {_MOST_ROWS} of {len(rows)} rows are drawn." if len(rows) > _MOST_ROWS else ""
    )
    return (note + more).strip(), lambda width: _draw(rows[:_MOST_ROWS], width, label)


def _draw(rows: Sequence[Row], width: int, label: str) -> Figure:
    """Draws the rows from top to bottom over one axis, which includes 0, with a legend of their
    keys.
    """
    heights = [(_HEADING_PX if row.is_heading else _ROW_PX) / _ROW_PX for row in rows]
    ends = [end for row in rows for end in row.ends]
    low, high = min(ends), max(ends)
    wide = high - low or 1.0
    keys = {bar.key for row in rows for bar in row.bars if abs(bar.length) > _SEEN * wide}
    keys |= {key for row in rows for key in row.marks}
    made, (axes,) = figure(width, sum(heights) * _ROW_PX + _REST_PX)
    axes.set_xlim(low - 0.02 * wide * (low < 0), low + 1.02 * wide)
    top = 0.0
    for row, height in zip(rows, heights, strict=True):
        _draw_text(
            axes, row, top - (height - 0.1 if row.is_heading else 0.44), int(width / _LETTER_PX)
        )
        _draw_bars(axes, row, top - 0.5 - _BAR / 2, keys, wide * _NUMBER_PX / width)
        top -= height
    axes.set_ylim(top, 0.0)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False, axis="y")
    axes.axvline(0.0, color=MUTED, linewidth=0.8)
    axes.set_xlabel(label)
    if len(keys) > 1:
        legend(made, 2 if width <= NARROW and len(keys) > 3 else len(keys))
    return made


def _draw_text(axes: Axes, row: Row, bottom: float, letters: int) -> None:
    # Text is placed by the width of the axes, bars by their values.
    across = axes.get_yaxis_transform()
    left = shorten(row.left, max(8, letters - len(row.right) - 2))
    weight = "bold" if row.is_heading else "normal"
    axes.text(0.0, bottom, left, transform=across, ha="left", va="bottom", weight=weight)
    axes.text(1.0, bottom, row.right, transform=across, ha="right", va="bottom")


def _draw_bars(axes: Axes, row: Row, middle: float, keys: set[Key], least: float) -> None:
    """Bars and marks; `least` is the length of a bar that has room for its number."""
    for (name, colour, _), start, length, number in row.bars:
        hatch = HATCHES.get(colour, "")
        if length:
            edge = PAPER if hatch else colour
            label = name if (name, colour, "") in keys else ""
            look: dict[str, Any] = {"facecolor": colour, "edgecolor": edge, "linewidth": 0.5}
            axes.barh(middle, length, left=start, height=_BAR, label=label, hatch=hatch, **look)
        if number and length >= least:
            at = start + length / 2
            axes.text(at, middle, number, ha="center", va="center", color=PAPER, fontsize=8)
    for key, value in row.marks.items():
        ends = [middle - _BAR / 2 - 0.05, middle + _BAR / 2]
        axes.plot(
            [value] * 2, ends, color=key.colour, linewidth=2.2, linestyle=key.line, label=key.name
        )
