"""Rows of bars over one axis, each under a line of text, so that labels fit even on a phone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from gpubalance.render.report.charts.style import (
    HATCHES,
    MUTED,
    NARROW,
    PAPER,
    Drawing,
    legend,
    new_figure,
)
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
    """The legend's name for a bar or a mark."""

    name: str
    colour: str


class Bar(NamedTuple):
    """A part of a row, in the axis' unit, from its start; to the left if the length is below 0."""

    key: Key
    start: float
    length: float
    number: str = ""


class Row(NamedTuple):
    """Bars, and `markers` across the row, under a text at the left and one at the right."""

    left: str
    right: str = ""
    bars: Sequence[Bar] = ()
    markers: Mapping[Key, float] = MappingProxyType({})

    @property
    def is_heading(self) -> bool:
        """Whether the row is only text."""
        return not self.bars and not self.markers

    @property
    def height(self) -> float:
        """The height, where that of a row of bars is 1."""
        if self.is_heading:
            return _HEADING_PX / _ROW_PX
        return 1.0


def stacked(lengths: Mapping[Key, float]) -> list[Bar]:
    """Bars of these lengths that follow each other from 0."""
    bars = []
    start = 0.0
    for key, length in lengths.items():
        bars.append(Bar(key, start, length))
        start += length
    return bars


def rows_chart(rows: Sequence[Row], label: str, note: str = "") -> Drawing:
    """The rows over an axis with that label, under the note."""
    if len(rows) > _MOST_ROWS:
        note = f"{note} Only the first {_MOST_ROWS} of {len(rows)} are drawn.".lstrip()
    return note, lambda width: _draw(rows[:_MOST_ROWS], width, label)


def _draw(rows: Sequence[Row], width: int, label: str) -> Figure:
    """Draws the rows from top to bottom over one axis, which includes 0, with a legend."""
    low, high = _range(rows)
    wide = high - low or 1.0
    keys: set[Key] = set()
    for row in rows:
        keys.update(bar.key for bar in row.bars if abs(bar.length) > _SEEN * wide)
        keys.update(row.markers)
    height = sum(row.height for row in rows) * _ROW_PX + _REST_PX
    figure, (axes,) = new_figure(width, height)
    left = low
    if low < 0:
        left -= 0.02 * wide
    axes.set_xlim(left, low + 1.02 * wide)
    top = 0.0
    for row in rows:
        text_height = 0.44
        if row.is_heading:
            text_height = row.height - 0.1
        _draw_text(axes, row, top - text_height, int(width / _LETTER_PX))
        _draw_bars(axes, row, top - 0.5 - _BAR / 2, keys, wide * _NUMBER_PX / width)
        top -= row.height
    axes.set_ylim(top, 0.0)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False, axis="y")
    axes.axvline(0.0, color=MUTED, linewidth=0.8)
    axes.set_xlabel(label)
    if width <= NARROW and len(keys) > 3:
        legend(figure, 2)
    elif len(keys) > 1:
        legend(figure, len(keys))
    return figure


def _range(rows: Sequence[Row]) -> tuple[float, float]:
    """The first and last place of a bar or mark, or 0."""
    places = [0.0]
    for row in rows:
        places += row.markers.values()
        for bar in row.bars:
            places += [bar.start, bar.start + bar.length]
    return min(places), max(places)


def _draw_text(axes: Axes, row: Row, bottom: float, letters: int) -> None:
    # Text is placed by the width of the axes, bars by their values.
    across = axes.get_yaxis_transform()
    left = shorten(row.left, max(8, letters - len(row.right) - 2))
    weight = "normal"
    if row.is_heading:
        weight = "bold"
    axes.text(
        0.0, bottom, left, transform=across, ha="left", va="bottom", weight=weight
    )
    axes.text(1.0, bottom, row.right, transform=across, ha="right", va="bottom")


def _draw_bars(
    axes: Axes, row: Row, middle: float, keys: set[Key], minimum: float
) -> None:
    """Bars and marks; `minimum` is the length of a bar that has room for its number."""
    for key, start, length, number in row.bars:
        if length:
            look: dict[str, Any] = {
                "facecolor": key.colour,
                "edgecolor": key.colour,
                "linewidth": 0.5,
            }
            if key in keys:
                look["label"] = key.name
            if key.colour in HATCHES:
                look["hatch"] = HATCHES[key.colour]
                look["edgecolor"] = PAPER
            axes.barh(middle, length, left=start, height=_BAR, **look)
        if number and length >= minimum:
            at = start + length / 2
            axes.text(
                at, middle, number, ha="center", va="center", color=PAPER, fontsize=8
            )
    for key, value in row.markers.items():
        ends = [middle - _BAR / 2 - 0.05, middle + _BAR / 2]
        axes.plot([value, value], ends, color=key.colour, linewidth=2.2, label=key.name)
