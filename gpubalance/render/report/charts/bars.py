"""Rows of bars, each under its own line of text, so that labels of any length fit, even on a phone."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from gpubalance.render.report.charts.chart import NARROW
from gpubalance.render.report.charts.style import HATCHES, MUTED, PAPER, figure, legend

_ROW_PX = 40
_HEADING_PX = 30
_REST_PX = 52  # the axis and its label
_LEGEND_PX = 24
_BAR = 0.42  # of a row; its text takes the rest


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
    heading: bool = False

    @property
    def ends(self) -> list[float]:
        """Where the pieces begin and end."""
        return list(itertools.accumulate((length for _, length in self.pieces), initial=0.0))


def draw_rows(rows: Sequence[Row], width: int, label: str, keys: Sequence[Key] = ()) -> Figure:
    """Draws the rows from top to bottom over one axis, which includes 0, with a legend of the keys."""
    heights = [_HEADING_PX if row.heading else _ROW_PX for row in rows]
    made, (axes,) = figure(width, sum(heights) + _REST_PX + (_LEGEND_PX if keys else 0))
    ends = [end for row in rows for end in (*row.ends, *(value for _, value in row.marks))]
    low, high = min(ends), max(ends)
    if high <= low:
        high = low + 1.0
    axes.set_xlim(low - 0.02 * (high - low) * (low < 0), high + 0.02 * (high - low))
    top = 0.0
    for row, height in zip(rows, heights, strict=True):
        _draw(axes, row, top, height / _ROW_PX)
        top -= height / _ROW_PX
    axes.set_ylim(top, 0.0)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False, axis="y")
    axes.axvline(0.0, color=MUTED, linewidth=0.8)
    axes.set_xlabel(label)
    if keys:
        legend(made, list(map(_handle, keys)), 2 if width <= NARROW and len(keys) > 3 else len(keys))
    return made


def _handle(key: Key) -> Patch | Line2D:
    if key.line:
        return Line2D([], [], color=key.colour, linewidth=2.2, linestyle=key.line, label=key.name)
    return Patch(facecolor=key.colour, edgecolor=PAPER, hatch=HATCHES.get(key.colour, ""), label=key.name)


def _draw(axes: Axes, row: Row, top: float, height: float) -> None:
    # Text is placed by the width of the axes, bars by their values.
    across = axes.get_yaxis_transform()
    weight = "bold" if row.heading else "normal"
    text = top - (height - 0.1 if row.heading else 0.44)
    axes.text(0.0, text, row.left, transform=across, ha="left", va="bottom", weight=weight)
    axes.text(1.0, text, row.right, transform=across, ha="right", va="bottom")
    middle = top - 0.5 - _BAR / 2
    for (key, length), start in zip(row.pieces, row.ends, strict=False):
        if length:
            axes.barh(
                middle,
                length,
                left=start,
                height=_BAR,
                facecolor=key.colour,
                edgecolor=PAPER if key.colour in HATCHES else key.colour,
                hatch=HATCHES.get(key.colour, ""),
                linewidth=0.5,
            )
    ends = [middle - _BAR / 2 - 0.05, middle + _BAR / 2]
    for key, value in row.marks:
        axes.plot([value, value], ends, color=key.colour, linewidth=2.2, linestyle=key.line)
