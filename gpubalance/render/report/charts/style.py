"""How charts look: colours that the colour-blind tell apart, and figures of the object interface, with no state shared.

Colours are Okabe and Ito's (Color Universal Design, 2008), with markers, dashes and hatches beside them. In the page
each stands for a CSS variable (see svg.py), so that one drawing serves a light and a dark page.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gpubalance.text import clean

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID, PAPER = "#1b1b1f", "#5d6169", "#d5d7dc", "#fefefe"
BLUE, VERMILLION, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
ORANGE, SKY, BLACK = "#e69f00", "#56b4e9", "#010101"

# What a colour is called in the page's CSS.
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

COMPUTE, WAIT, SYNC, INPUT = BLUE, ORANGE, PURPLE, SKY
HATCHES = {WAIT: "////", SYNC: "||||", INPUT: "xxx"}
CHOSEN, EVEN = INK, MUTED  # beside devices, whose colours are others

# One a device. Coprime numbers of each: 7 · 8 devices look unlike, by more than one thing.
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


def short_name(label: str, name: str) -> str:
    """`GPU:0 GeForce GTX 1080 Ti`, short enough for a legend."""
    return f"{label} {clean(name, _NAME_LENGTH)}"


@contextmanager
def drawing(salt: str) -> Iterator[None]:
    """matplotlib's own defaults, whatever the user's are, with ours above them; all is as before at the end.

    The salt makes the names within an SVG the same each time, and other ones in each chart.
    """
    import matplotlib

    log = logging.getLogger("matplotlib")
    level = log.level
    log.setLevel(logging.ERROR)  # that it builds its font cache the first time is no news to our users
    try:
        with matplotlib.rc_context(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(_settings(salt))
            yield
    finally:
        log.setLevel(level)


def _settings(salt: str) -> dict[Any, Any]:
    return {
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": salt,
        "text.parse_math": False,  # a device's name may have a $ in it
        "text.usetex": False,
        "font.family": ["DejaVu Sans"],  # comes with matplotlib, and is wide: what is drawn instead has room
        "font.size": _TEXT_PX,
        "axes.titlesize": _TEXT_PX,
        "axes.labelsize": _TEXT_PX,
        "legend.fontsize": _TEXT_PX,
        "xtick.labelsize": _TEXT_PX,
        "ytick.labelsize": _TEXT_PX,
        "hatch.linewidth": 0.8,
        "path.simplify": True,
    }


def figure(width: int, height: int, rows: Sequence[float] = (1,)) -> tuple[Figure, list[Axes]]:
    """A figure with axes one above the other, of these relative heights, that share their x axis."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(width / _PX_PER_INCH, height / _PX_PER_INCH), layout="constrained", dpi=_PX_PER_INCH)
    made.patch.set_alpha(0.0)
    found = made.subplots(len(rows), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": list(rows)})
    axes = [row[0] for row in found]
    for one in axes:
        plain(one)
    return made, axes


def plain(axes: Axes) -> None:
    """Axes without a box, with a pale grid, in the page's ink."""
    axes.patch.set_alpha(0.0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(MUTED)
    axes.grid(visible=True, color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, which="both", length=3)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)


def legend(made: Figure, handles: Sequence[Artist], columns: int) -> None:
    """Below the axes, where it covers nothing."""
    made.legend(
        handles=list(handles),
        loc="outside lower left",
        ncols=columns,
        frameon=False,
        labelcolor=INK,
        handlelength=2.4,
        columnspacing=1.4,
        borderaxespad=0.2,
    )
