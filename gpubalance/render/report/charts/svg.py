"""A chart as SVG within a page, or as PNG."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from gpubalance.render.report.charts.chart import Chart
from gpubalance.render.report.charts.style import PAPER, VARIABLES, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SVG = "{http://www.w3.org/2000/svg}"
_HREF = "{http://www.w3.org/1999/xlink}href"
_NO_METADATA = {"Creator": None, "Date": None, "Format": None, "Type": None}
_PNG_DPI = 144


def chart_svg(chart: Chart, section: str, width: int) -> str:
    """The chart with its title and description, in the page's colours, with ids that are unique on the page."""
    prefix = f"{section}-{chart.id}-{width}"
    with drawing(prefix):
        text = _as_svg(chart.draw(width))
    root = ET.fromstring(text)  # noqa: S314  (matplotlib wrote it just now)
    view = root.get("viewBox", f"0 0 {width} {width}")
    root.attrib.clear()
    _clean(root, prefix)
    names = {"title": chart.title, "desc": chart.text}
    for place, (tag, content) in enumerate(names.items()):
        child = ET.Element(tag, {"id": f"{prefix}-{tag}"})
        child.text = content
        root.insert(place, child)
    root.attrib.update(
        {
            "viewBox": view,
            "role": "img",
            "aria-labelledby": f"{prefix}-title",
            "aria-describedby": f"{prefix}-desc",
            "width": "100%",
        }
    )
    return ET.tostring(root, encoding="unicode")


def chart_png(chart: Chart, width: int) -> bytes:
    """The chart with its title on white, at twice its size on a page."""
    with drawing(chart.id):
        figure = chart.draw(width)
        figure.suptitle(chart.title, x=0.01, ha="left", weight="bold")
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=_PNG_DPI, facecolor=PAPER, metadata={"Software": None})
    return file.getvalue()


def _as_svg(figure: Figure) -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata=_NO_METADATA)
    return file.getvalue()


def _clean(root: ET.Element, prefix: str) -> None:
    """Removes metadata, style sheets and namespaces, which HTML does not need; sets own ids and the page's colours."""
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{_SVG}metadata", f"{_SVG}style"):
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
        element.tail = None
        if element.tag != "text":
            element.text = None
        found = dict(element.attrib)
        element.attrib.clear()
        for name, value in found.items():
            if name == "id":
                element.set("id", f"{prefix}-{value}")
            elif name == _HREF:
                element.set("href", value.replace("#", f"#{prefix}-", 1))
            else:
                element.set(name, _value(value, prefix))


def _value(value: str, prefix: str) -> str:
    value = value.replace("url(#", f"url(#{prefix}-")
    value = re.sub(r"(font: [^;]*?[\d.]+px) [^;]*", r"\1 var(--font)", value)
    value = re.sub(r"font-family: [^;]*", "font-family: var(--font)", value)
    return re.sub(r"#[0-9a-fA-F]{6}\b", lambda m: _variable(m[0]), value)


def _variable(found: str) -> str:
    name = VARIABLES.get(found.lower())
    return f"var({name})" if name else found
