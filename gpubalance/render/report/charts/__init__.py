"""The charts of a section, and why others are missing."""

from __future__ import annotations

from gpubalance.render.report.charts import course, curves, gap, memory, rounds, steps, trials
from gpubalance.render.report.charts.chart import Chart, Missing
from gpubalance.render.report.subject import Subject


def charts_of(subject: Subject) -> tuple[Chart | Missing, ...]:
    """The problem and its solution first, then why not more, then what the result is based on."""
    makers = (steps, gap, curves, memory, course, rounds, trials)
    return tuple(maker.chart(subject) for maker in makers)
