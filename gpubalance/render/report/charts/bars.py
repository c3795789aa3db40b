"""Rows of bars, each under its own line of text, so that labels of any length have room, on a phone too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpubalance.render.report.charts.style import HATCHES, MUTED, PAPER, figure

_ROW_PX = 40
_HEADING_PX = 30
_REST_PX = 52  # the axis and its label
_BAR = 0.42  # of a row; the rest is its text


@dataclass(frozen=True)
class Piece:
    """A piece of a bar in the axis' unit; with a `length` below 0 it goes to the left."""

    start: float
    length: float
    colour: str


@dataclass(frozen=True)
class Row:
    """Pieces under a text at the left and one at the right; a row without pieces is a heading.

    `marks` are lines across the bar at values, each with its colour and line style.
    """

    left: str
    right: str = ""
    pieces: tuple[Piece, ...] = ()
    marks: tuple[tuple[float, str, str], ...] = field(default=())
    heading: bool = False


def draw_rows(rows: Sequence[Row], width: int, label: str, legend_px: int) -> tuple[Figure, Axes]:
    """Draws the rows from top to bottom over one axis, which has 0 on it, and leaves room for a legend."""
    heights = [_HEADING_PX if row.heading else _ROW_PX for row in rows]
    made, (axes,) = figure(width, sum(heights) + _REST_PX + legend_px)
    low = min([0.0, *(min(p.start, p.start + p.length) for row in rows for p in row.pieces)])
    high = max([*(max(p.start, p.start + p.length) for row in rows for p in row.pieces), 0.0])
    high = max([high, *(value for row in rows for value, _, _ in row.marks)])
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
    return made, axes


def _draw(axes: Axes, row: Row, top: float, height: float) -> None:
    # Text is placed by the width of the axes, bars by their values.
    across = axes.get_yaxis_transform()
    weight = "bold" if row.heading else "normal"
    text = top - (height - 0.1 if row.heading else 0.44)
    axes.text(0.0, text, row.left, transform=across, ha="left", va="bottom", weight=weight)
    axes.text(1.0, text, row.right, transform=across, ha="right", va="bottom")
    middle = top - 0.5 - _BAR / 2
    for piece in row.pieces:
        if piece.length:
            axes.barh(
                middle,
                piece.length,
                left=piece.start,
                height=_BAR,
                facecolor=piece.colour,
                edgecolor=PAPER if piece.colour in HATCHES else piece.colour,
                hatch=HATCHES.get(piece.colour, ""),
                linewidth=0.5,
            )
    for value, mark_colour, style in row.marks:
        axes.plot(
            [value, value],
            [middle - _BAR / 2 - 0.05, middle + _BAR / 2],
            color=mark_colour,
            linewidth=2.2,
            linestyle=style,
        )
