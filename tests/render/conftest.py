"""Draws a page once for all tests that look at it, as drawing takes seconds."""

from __future__ import annotations

import pytest

from gpubalance.jobs.report import read_subjects
from gpubalance.render.report.charts import charts_of
from gpubalance.render.report.page import html_page
from gpubalance.results.subject import ReportSubject
from tests.render import samples


@pytest.fixture(scope="session")
def subjects() -> tuple[ReportSubject, ...]:
    """The balanced pair as if on GPUs, the balanced four devices, the pair's probe, and a plan.

    The plan was not run.
    """
    shown = (samples.BALANCE, samples.FOUR, samples.PROBE, samples.PLAN)
    found = read_subjects([*shown, samples.FOUR_PROBE])
    return (samples.with_telemetry(found[0]), *found[1:4])


@pytest.fixture(scope="session")
def html(subjects: tuple[ReportSubject, ...]) -> str:
    """The page of all subjects."""
    return html_page(subjects, [charts_of(subject) for subject in subjects])
