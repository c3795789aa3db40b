"""The charts of a section, and why others are missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpubalance.render.report.charts import bars
from gpubalance.render.report.charts.chart import Chart, Charts, Drawing
from gpubalance.render.report.charts.course import course
from gpubalance.render.report.charts.curves import curves
from gpubalance.results.subject import ReportSubject

_MEMORY = ("memory", "Memory of each device against its limit", bars.memory)
_COURSE = ("course", "Step time over the measurement", course)
# The problem and its solution first, then why not more, then what the result is based on. Each
# function returns the drawing, or a text that says why there is none; an empty text if nobody would
# look for it.
_CHARTS = (
    ("step", "Where a step's time goes", bars.steps),
    ("gap", "Where the distance from the solo sum goes", bars.gap),
    ("curves", "Throughput over batch size, each device alone", curves),
    (
        "goodput",
        "Throughput, what a sample is worth, and goodput over the global batch",
        bars.goodput,
    ),
    _MEMORY,
    ("course", "Step time over the run", course),
    ("rounds", "The search for the split", bars.rounds),
)
_OF_KIND: Mapping[str, Sequence[tuple[str, str, Callable[[Any], Drawing | str]]]] = {
    "queue": [("commands", "What each device ran, and when", lambda of: bars.commands(of.result))],
    # Models that train independently share no step, and nothing was searched for.
    "independent": [
        (
            "at-once",
            "Each device alone, and at once with the others",
            lambda of: bars.at_once(of.result),
        ),
        _MEMORY,
        _COURSE,
    ],
    "layers": [
        ("timeline", "One step, task by task", lambda of: bars.timeline(of.result)),
        ("stages", "Where a step's time goes, device by device", lambda of: bars.stages(of.result)),
        _MEMORY,
        _COURSE,
    ],
}


def charts_of(subject: ReportSubject) -> Charts:
    """The charts that can be drawn from this result."""
    found = [
        (name, title, chart(subject)) for name, title, chart in _OF_KIND.get(subject.kind, _CHARTS)
    ]
    drawn = [Chart(name, title, *one) for name, title, one in found if not isinstance(one, str)]
    return Charts(
        tuple(drawn), {title: one for _, title, one in found if isinstance(one, str) and one}
    )
