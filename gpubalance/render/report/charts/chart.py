"""A chart: its texts, its style, and what draws it as SVG within a page or as PNG.

The colours are Okabe and Ito's (Color Universal Design, 2008), which colour-blind readers can tell
apart, with markers, dashes and hatches beside them. In the page each stands for a CSS variable, so
that one drawing serves a light and a dark page.
"""

from __future__ import annotations

import io
import logging
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from gpubalance.settings.device import Device
from gpubalance.text import clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_PNG_DPI = 144
_NO_METADATA = {"Creator": None, "Date": None, "Format": None, "Type": None}
# What HTML does not need of matplotlib's SVG: metadata, style sheets, and space between elements.
_NEEDLESS = r"(?s)<metadata>.*?</metadata>|<style.*?</style>|(?<=>)\s+(?=<)"
# In its tags: ids that are unique on a page, and the page's fonts.
_IN_TAGS = (
    (r' id="', r' id="{}-'),
    (r"url\(#", r"url(#{}-"),
    (r'xlink:href="#', r'href="#{}-'),
    (r"(font: [^;]*?[\d.]+px) [^;]*", r"\1 var(--font)"),
    (r"font-family: [^;]*", "font-family: var(--font)"),
)

# A caption, which may be empty, and a function that draws the chart in a width in CSS pixels.
Drawing = tuple[str, "Callable[[int], Figure]"]


class Chart(NamedTuple):
    """A drawing with its name in files and its title."""

    id: str
    title: str
    text: str
    draw: Callable[[int], Figure]

    def svg(self, section: str, width: int) -> str:
        """The chart with its title, in the page's colours, with ids that are unique on the page."""
        prefix = f"{section}-{self.id}-{width}"
        file = io.StringIO()
        with drawing(prefix):
            self.draw(width).savefig(
                file, format="svg", transparent=True, metadata=_NO_METADATA
            )
        head, body = re.split(
            r"(?<=>)", file.getvalue().partition("<svg")[2], maxsplit=1
        )
        view = re.search(r'viewBox="[^"]*"', head)
        view_box = view[0] if view else ""
        body = re.sub(_NEEDLESS, "", body.strip())
        body = re.sub(r"<[^>]*>", lambda tag: _tag(tag[0], prefix), body)
        title = f'<title id="{prefix}-title">{escape(self.title)}</title>'
        attributes = (
            f'{view_box} role="img" aria-labelledby="{prefix}-title" width="100%"'
        )
        return f"<svg {attributes}>{title}{body}"

    def png(self, width: int) -> bytes:
        """The chart with its title on white, at twice its size on a page."""
        file = io.BytesIO()
        with drawing(self.id):
            figure = self.draw(width)
            figure.suptitle(self.title, x=0.01, ha="left", weight="bold")
            figure.savefig(
                file,
                format="png",
                dpi=_PNG_DPI,
                facecolor=PAPER,
                metadata={"Software": None},
            )
        return file.getvalue()


def _tag(tag: str, prefix: str) -> str:
    for pattern, page in _IN_TAGS:
        tag = re.sub(pattern, page.format(prefix), tag)
    return re.sub(r"#[0-9a-fA-F]{6}\b", lambda colour: _variable(colour[0]), tag)


def _variable(colour: str) -> str:
    name = VARIABLES.get(colour.lower())
    return f"var({name})" if name else colour


class Charts(NamedTuple):
    """The charts of a result, and for each of the others, by its title, why it can't be drawn."""

    drawn: tuple[Chart, ...]
    missing: dict[str, str]


# The widths of a page's column and of a phone, in CSS pixels if the chart is not scaled.
WIDE = 640
NARROW = 340

_INKS = {"ink": "#1b1b1f", "muted": "#5d6169", "grid": "#d5d7dc", "paper": "#fefefe"}
_HUES = {
    "blue": "#0072b2",
    "vermillion": "#d55e00",
    "green": "#009e73",
    "purple": "#cc79a7",
    "black": "#010101",
    "orange": "#e69f00",
    "sky": "#56b4e9",
}
INK, MUTED, GRID, PAPER = _INKS.values()
BLUE, VERMILLION, GREEN, PURPLE, BLACK, ORANGE, SKY = _HUES.values()
# The page's CSS variable for each colour.
VARIABLES = {colour: f"--{name}" for name, colour in (_INKS | _HUES).items()}

COMPUTE = BLUE
UPDATE = GREEN
WAIT = ORANGE
SYNC = PURPLE
INPUT = SKY
SLOW = BLACK
FORWARD = BLUE
BACKWARD = VERMILLION
TRANSFER = ORANGE
BUBBLE = GRID
HATCHES = {UPDATE: "\\\\\\\\", WAIT: "////", SYNC: "||||", INPUT: "xxx"}
CHOSEN, EVEN = INK, MUTED  # devices have other colours

# One of each for every device. Their numbers are coprime, so that 7 · 8 devices all look different.
_COLOURS = tuple(_HUES.values())
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_DASHES: tuple[tuple[float, ...], ...] = (
    (5, 2),
    (2, 1.5),
    (7, 2, 1.5, 2),
    (1, 1.5),
    (9, 3),
)

_TEXT_PX = 11.5
_LEGEND_PX = 18
_NAME_LENGTH = 26
_PX_PER_INCH = 72.0  # matplotlib's SVG has 72 units an inch


def look(device: int) -> dict[str, Any]:
    """A device's colour, marker and dashes, as matplotlib names them."""
    return {
        "color": _COLOURS[device % len(_COLOURS)],
        "marker": _MARKERS[device % len(_MARKERS)],
        "linestyle": (0, _DASHES[device % len(_DASHES)]),
    }


def device_name(device: Device, width: int = WIDE) -> str:
    """`GPU:0 GeForce GTX 1080 Ti`, short enough for a legend; `GPU:0` in a narrow chart."""
    if width <= NARROW:
        return device.label
    return f"{device.label} {clean(device.name, _NAME_LENGTH)}"


def long_name(device: Device, what: str) -> str:
    """`GPU:0, batch 820, GeForce GTX 1080 Ti`: what a narrow chart leaves out stands last."""
    return f"{device.label}, {what}, {clean(device.name, _NAME_LENGTH)}"


@contextmanager
def drawing(salt: str) -> Iterator[None]:
    """Draws with our settings over matplotlib's defaults, and restores the user's at the end.

    The salt makes the names within an SVG the same each time, but different in each chart.
    """
    log = logging.getLogger("matplotlib")
    with ExitStack() as stack:
        stack.callback(log.setLevel, log.level)
        log.setLevel(logging.ERROR)  # users need not know that it builds its font cache
        from matplotlib import style

        stack.enter_context(style.context(_settings(salt), after_reset=True))
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings(
            "ignore", message="Glyph .* missing", category=UserWarning
        )
        yield


def _settings(salt: str) -> dict[Any, Any]:
    """Axes without a box, with a pale grid, in the page's ink."""
    sizes = (
        "font.size",
        "axes.titlesize",
        "axes.labelsize",
        "legend.fontsize",
        "xtick.labelsize",
        "ytick.labelsize",
    )
    inks = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color")
    return {
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": salt,
        "text.parse_math": False,  # a device's name may contain a $
        # Comes with matplotlib, and is wide, so that other fonts fit.
        "font.family": ["DejaVu Sans"],
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
        "legend.frameon": False,
        "legend.columnspacing": 1.4,
        **dict.fromkeys(sizes, _TEXT_PX),
        **dict.fromkeys(inks, INK),
    }


def new_figure(
    width: int, height: float, rows: Sequence[float] = (1,)
) -> tuple[Figure, list[Axes]]:
    """A figure of axes above each other, with these relative heights and a shared x axis."""
    from matplotlib.figure import Figure

    figure = Figure(
        figsize=(width / _PX_PER_INCH, height / _PX_PER_INCH), layout="constrained"
    )
    axes = figure.subplots(
        len(rows), 1, sharex=True, squeeze=False, height_ratios=list(rows)
    )
    return figure, list(axes[:, 0])


def legend(figure: Figure, columns: int) -> None:
    """What each label stands for, below the axes; the figure grows by as much."""
    markers = {}
    for axes in figure.axes:
        for mark, label in zip(*axes.get_legend_handles_labels(), strict=True):
            markers[label] = mark
    columns = min(columns, len(markers))
    lines = math.ceil(len(markers) / columns)
    figure.set_figheight(figure.get_figheight() + lines * _LEGEND_PX / _PX_PER_INCH)
    figure.legend(
        markers.values(), markers.keys(), loc="outside lower left", ncols=columns
    )
