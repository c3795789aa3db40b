"""A cut model in a report and as text.

In a report its picture is its timeline, and its tables have its numbers.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from matplotlib.colors import to_rgb

from gpubalance.render.layers import layers_summary, timeline_lines
from gpubalance.render.report.charts.style import (
    BACKWARD,
    FORWARD,
    NARROW,
    TRANSFER,
    UPDATE,
    WIDE,
)
from gpubalance.render.report.tables import tables_of
from gpubalance.render.table import exact
from gpubalance.results.layers import Layers
from gpubalance.results.subject import ReportSubject
from tests.jobs.probes import inside
from tests.render import samples
from tests.render.test_report_charts import bars, drawn
from tests.support.altered import altered

LAYERS = samples.DATA / "pair-layers.json"


@pytest.fixture
def subject() -> ReportSubject:
    return samples.subject(LAYERS)


@pytest.fixture
def result(subject: ReportSubject) -> Layers:
    assert isinstance(subject.result, Layers)
    return subject.result


def test_the_picture_is_the_step(subject: ReportSubject, result: Layers) -> None:
    chart = drawn(subject, "timeline")
    shown = bars(chart)
    rows = {stage.device: -1 - row for row, stage in enumerate(result.stages)}
    for kind, colour in (("forward", FORWARD), ("backward", BACKWARD)):
        found = sorted(
            (round(bar.get_y() + bar.get_height() / 2), bar.get_x(), bar.get_width())
            for bar in shown
            if bar.get_facecolor()[:3] == to_rgb(colour)
        )
        tasks = [task for task in result.timeline.tasks if task.kind == kind]
        wanted = sorted(
            (rows[task.device], 1e3 * task.start_s, 1e3 * (task.end_s - task.start_s))
            for task in tasks
        )
        assert sum(found, ()) == pytest.approx(sum(wanted, ()))
        assert len(tasks) == result.micro_batches * len(result.segments)
    assert {bar.get_facecolor()[:3] for bar in shown} >= {
        to_rgb(UPDATE),
        to_rgb(TRANSFER),
    }
    for width in (WIDE, NARROW):
        assert re.search(
            "<title[^>]*>One step, task by task</title>", chart.svg("result-1", width)
        )


def test_a_device_with_little_to_do_has_a_line_that_says_why(result: Layers) -> None:
    waits = (
        "GPU:0 idles 40 % of a step: it waits for GPU:1, whose stage takes longest; "
    )
    assert f"{waits}no other cut that fits is predicted to be faster" in told(result)
    assert f"{waits}the cuts are those of --cuts" in told(
        altered(result, cuts=("dense",))
    )
    first, second = result.stages
    busy = altered(result, stages=(first, altered(second, bubble_s=0.0)))
    assert not [line for line in told(busy) if "idles" in line]


def told(result: Layers) -> list[str]:
    return [part for part in layers_summary(result) if isinstance(part, str)]


def test_a_line_of_text_has_each_device_s_time_in_proportion(result: Layers) -> None:
    _, *rows = timeline_lines(result, 80)
    for row, stage in zip(rows, result.stages, strict=True):
        spans = list(result.timeline.spans(stage.device))
        assert all(
            before.end_s <= after.start_s + 1e-6 for before, after in pairwise(spans)
        )
        label, line = row.split(maxsplit=1)
        assert label == result.devices[stage.device].label
        for letters, seconds in (("Ff", stage.forward_s), ("Bb", stage.backward_s)):
            part = sum(line.count(letter) for letter in letters) / len(line)
            assert part == pytest.approx(seconds / result.step_time_s.median, abs=0.1)


def test_the_prediction_s_interval_has_the_unit_of_what_it_is_about(
    subject: ReportSubject, result: Layers
) -> None:
    known = replace(subject, result=inside(result, "predicted", ci95=(0.5, 0.75)))
    (table,) = [table for table in tables_of(known) if table.kind.id == "predicted"]
    assert [column.head for column in table.columns] == [
        "step time, ms",
        "from (95 %), ms",
        "to (95 %), ms",
    ]
    assert [exact(0.5, column) for column in table.columns] == ["500"] * 3
