"""The charts of a section, and why others are missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gpubalance.render.report.charts import bars
from gpubalance.render.report.charts.chart import Chart, Charts, Drawing
from gpubalance.render.report.charts.lines import course, curves
from gpubalance.results.subject import ReportSubject

_DrawingOf = Callable[[ReportSubject], Drawing | str]


class _ChartKind(NamedTuple):
    """A chart's name and title, and what makes it.

    The function returns the drawing, or a text that says why there is none; an empty text if nobody
    would look for it.
    """

    id: str
    title: str
    drawing_of: _DrawingOf


def _of_result(drawing_of: Callable[[Any], Drawing | str]) -> _DrawingOf:
    return lambda subject: drawing_of(subject.result)


_MEMORY = _ChartKind("memory", "Memory of each device against its limit", bars.memory)
_COURSE = _ChartKind("course", "Step time over the measurement", course)
# The problem and its solution first, then why not more, then what the result is based on.
_CHARTS = (
    _ChartKind("step", "Where a step's time goes", bars.steps),
    _ChartKind("gap", "What keeps the throughput below the solo sum", bars.gap),
    _ChartKind("curves", "Throughput over batch size, each device alone", curves),
    _ChartKind(
        "goodput",
        "Throughput, efficiency and goodput by global batch",
        bars.goodput,
    ),
    _MEMORY,
    _ChartKind("course", "Step time over the run", course),
    _ChartKind("rounds", "The search for the split", bars.rounds),
)
_OF_KIND: Mapping[str, Sequence[_ChartKind]] = {
    "queue": [
        _ChartKind(
            "commands",
            "What each device ran, and when",
            _of_result(bars.commands),
        ),
    ],
    # Models that train independently share no step, and nothing was searched for.
    "independent": [
        _ChartKind(
            "at-once",
            "Each device alone, and at once with the others",
            _of_result(bars.at_once),
        ),
        _MEMORY,
        _COURSE,
    ],
    "layers": [
        _ChartKind("timeline", "One step, task by task", _of_result(bars.timeline)),
        _ChartKind(
            "stages",
            "Where a step's time goes, device by device",
            _of_result(bars.stages),
        ),
        _MEMORY,
        _COURSE,
    ],
}


def charts_of(subject: ReportSubject) -> Charts:
    """The charts that can be drawn from this result."""
    drawn: list[Chart] = []
    missing: dict[str, str] = {}
    for kind in _OF_KIND.get(subject.kind, _CHARTS):
        drawing = kind.drawing_of(subject)
        if not isinstance(drawing, str):
            drawn.append(Chart(kind.id, kind.title, *drawing))
        elif drawing:
            missing[kind.title] = drawing
    return Charts(tuple(drawn), missing)
