"""A chart before it is drawn: its texts, and a function that draws it in a given width."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The widths of a page's column and of a phone, in CSS pixels if the chart is not scaled.
WIDE, NARROW = 640, 340


# A caption, which a screen reader also reads, and a function that draws the chart in a width in CSS pixels.
Drawing = tuple[str, "Callable[[int], Figure]"]


class Chart(NamedTuple):
    """A drawing with its name in files and its title."""

    id: str
    title: str
    text: str
    draw: Callable[[int], Figure]


class Charts(NamedTuple):
    """The charts of a result, and for each of the others, by its title, why it can't be drawn."""

    drawn: tuple[Chart, ...]
    missing: dict[str, str]
