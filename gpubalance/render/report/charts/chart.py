"""A chart before it is drawn: its words, and a function that draws it in a given width."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The widths of a page's column and of a phone, in CSS pixels where the chart is not scaled.
WIDE, NARROW = 640, 340


@dataclass(frozen=True)
class Chart:
    """`text` is the caption, and what a screen reader says. `draw` takes a width in CSS pixels."""

    id: str
    title: str
    text: str
    draw: Callable[[int], Figure]


@dataclass(frozen=True)
class Missing:
    """A chart that can't be drawn, and why."""

    id: str
    title: str
    why: str
