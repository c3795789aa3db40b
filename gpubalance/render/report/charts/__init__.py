"""The charts of a section, and why others are missing."""

from __future__ import annotations

from gpubalance.render.report.charts import course, curves, rows, timeline
from gpubalance.render.report.charts.chart import Chart, Charts
from gpubalance.results.subject import Subject

# The problem and its solution first, then why not more, then what the result is based on. Each function returns the
# drawing, or a text that says why there is none; an empty text if nobody would look for it.
_CHARTS = (
    ("step", "Where a step's time goes", rows.steps),
    ("gap", "Where the distance from the solo sum goes", rows.gap),
    ("curves", "Throughput over batch size, each device alone", curves.chart),
    ("goodput", "Throughput, what a sample is worth, and goodput over the global batch", rows.goodput),
    ("memory", "Memory of each device against its limit", rows.memory),
    ("course", "Step time over the run", course.chart),
    ("rounds", "The search for the split", rows.rounds),
    ("trials", "The search for the batch limit", rows.trials),
)


# Models that train independently share no step, and nothing was searched for.
_OF_INDEPENDENT = (
    ("at-once", "Each device alone, and at once with the others", rows.at_once),
    ("memory", "Memory of each device against its limit", rows.memory),
    ("course", "Step time over the measurement", course.chart),
)


_OF_LAYERS = (
    ("timeline", "One step, task by task", timeline.chart),
    ("stages", "Where a step's time goes, device by device", rows.stages),
    ("memory", "Memory of each device against its limit", rows.memory),
    ("course", "Step time over the measurement", course.chart),
)


def charts_of(subject: Subject) -> Charts:
    """The charts that can be drawn from this result."""
    drawn: list[Chart] = []
    missing: dict[str, str] = {}
    of_kind = {"independent": _OF_INDEPENDENT, "layers": _OF_LAYERS}
    for name, title, chart in of_kind.get(subject.kind, _CHARTS):
        found = chart(subject)
        if found == "":
            continue
        if isinstance(found, str):
            missing[title] = found
        else:
            drawn.append(Chart(name, title, *found))
    return Charts(tuple(drawn), missing)
