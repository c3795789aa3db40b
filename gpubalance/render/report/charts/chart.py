"""A chart: its texts, and what draws it in a given width, as SVG within a page or as PNG."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from gpubalance.render.report.charts.style import PAPER, VARIABLES, drawing

if TYPE_CHECKING:
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
