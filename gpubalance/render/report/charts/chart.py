"""A chart before it is drawn: what it shows in words, and how it is drawn at a width."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# In units of an SVG's viewBox, which are CSS pixels where the chart is not scaled: a page's column, and a phone.
WIDE, NARROW = 640, 340


@dataclass(frozen=True)
class Chart:
    """`text` is its caption, and what is read out instead of it. `draw` takes a width, in CSS pixels."""

    id: str
    title: str
    text: str
    draw: Callable[[int], Figure]


@dataclass(frozen=True)
class Missing:
    """A chart that a result has nothing for, and why."""

    id: str
    title: str
    why: str
