"""The style of charts, in colours that colour-blind readers can tell apart.

The colours are Okabe and Ito's (Color Universal Design, 2008), with markers, dashes and hatches beside them. In the
page each stands for a CSS variable (see svg.py), so that one drawing serves a light and a dark page.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gpubalance.render.report.charts.chart import NARROW, WIDE
from gpubalance.settings.device import Device
from gpubalance.text import clean

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID, PAPER = "#1b1b1f", "#5d6169", "#d5d7dc", "#fefefe"
BLUE, VERMILLION, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
ORANGE, SKY, BLACK = "#e69f00", "#56b4e9", "#010101"

# The page's CSS variable for each colour.
VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--grid",
    PAPER: "--paper",
    BLUE: "--blue",
    VERMILLION: "--vermillion",
    GREEN: "--green",
    PURPLE: "--purple",
    ORANGE: "--orange",
    SKY: "--sky",
    BLACK: "--black",
}

COMPUTE, UPDATE, WAIT, SYNC, INPUT = BLUE, GREEN, ORANGE, PURPLE, SKY
FORWARD, BACKWARD, TRANSFER, BUBBLE = BLUE, VERMILLION, ORANGE, GRID
HATCHES = {UPDATE: "\\\\\\\\", WAIT: "////", SYNC: "||||", INPUT: "xxx"}
CHOSEN, EVEN = INK, MUTED  # devices have other colours

# One of each for every device. Their numbers are coprime, so that 7 · 8 devices all look different.
_COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, BLACK, ORANGE, SKY)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_DASHES: tuple[tuple[float, ...], ...] = ((5, 2), (2, 1.5), (7, 2, 1.5, 2), (1, 1.5), (9, 3))

_TEXT_PX = 11.5
_NAME_LENGTH = 26
_PX_PER_INCH = 72.0  # matplotlib's SVG has 72 units an inch


def colour(device: int) -> str:
    """A device's colour."""
    return _COLOURS[device % len(_COLOURS)]


def marker(device: int) -> str:
    """A device's marker."""
    return _MARKERS[device % len(_MARKERS)]


def dashes(device: int) -> tuple[float, tuple[float, ...]]:
    """A device's dashes, as a line style."""
    return 0, _DASHES[device % len(_DASHES)]


def device_name(device: Device, width: int = WIDE) -> str:
    """`GPU:0 GeForce GTX 1080 Ti`, short enough for a legend; `GPU:0` in a narrow chart."""
    return device.label if width <= NARROW else f"{device.label} {clean(device.name, _NAME_LENGTH)}"


@contextmanager
def drawing(salt: str) -> Iterator[None]:
    """Draws with our settings over matplotlib's defaults, not the user's, and restores the user's at the end.

    The salt makes the names within an SVG the same each time, but different in each chart.
    """
    import matplotlib

    log = logging.getLogger("matplotlib")
    level = log.level
    log.setLevel(logging.ERROR)  # users need not know that it builds its font cache
    try:
        with matplotlib.rc_context(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(_settings(salt))
            yield
    finally:
        log.setLevel(level)


def _settings(salt: str) -> dict[Any, Any]:
    """Axes without a box, with a pale grid, in the page's ink."""
    sizes = ("font.size", "axes.titlesize", "axes.labelsize", "legend.fontsize", "xtick.labelsize", "ytick.labelsize")
    inks = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color")
    ticks = ("xtick.major.size", "xtick.minor.size", "ytick.major.size", "ytick.minor.size")
    return {
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": salt,
        "text.parse_math": False,  # a device's name may contain a $
        "font.family": ["DejaVu Sans"],  # comes with matplotlib, and is wide, so that other fonts fit
        "figure.dpi": _PX_PER_INCH,
        "axes.facecolor": "none",
        "axes.edgecolor": MUTED,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlelocation": "left",
        "axes.axisbelow": True,
        "axes.grid": True,
        "grid.color": GRID,
        "grid.linewidth": 0.7,
        "hatch.linewidth": 0.8,
        "legend.frameon": False,
        "legend.handlelength": 2.4,
        "legend.columnspacing": 1.4,
        "legend.borderaxespad": 0.2,
        **dict.fromkeys(sizes, _TEXT_PX),
        **dict.fromkeys(inks, INK),
        **dict.fromkeys(ticks, 3),
    }


def figure(width: int, height: float, rows: Sequence[float] = (1,)) -> tuple[Figure, list[Axes]]:
    """A figure of axes above each other, with these relative heights and a shared x axis."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(width / _PX_PER_INCH, height / _PX_PER_INCH), layout="constrained")
    found = made.subplots(len(rows), 1, sharex=True, squeeze=False, height_ratios=list(rows))
    return made, [row[0] for row in found]


def legend(made: Figure, handles: Sequence[Artist], columns: int) -> None:
    """Puts a legend below the axes, where it covers nothing."""
    made.legend(handles=list(handles), loc="outside lower left", ncols=columns)
