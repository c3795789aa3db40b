"""A cut model in a report and as text.

In a report its picture is its timeline, and its tables have its numbers.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpubalance.render.layers import layers_summary
from gpubalance.render.report.tables import tables_of
from gpubalance.render.table import exact
from gpubalance.results.layers import Layers
from gpubalance.results.subject import ReportSubject
from tests.jobs.probes import inside
from tests.render import samples
from tests.support.altered import altered

LAYERS = samples.DATA / "pair-layers.json"


@pytest.fixture
def subject() -> ReportSubject:
    return samples.subject(LAYERS)


@pytest.fixture
def result(subject: ReportSubject) -> Layers:
    assert isinstance(subject.result, Layers)
    return subject.result


def test_a_device_with_little_to_do_has_a_line_that_says_why(result: Layers) -> None:
    waits = "idles 40 % of a step: it waits for GPU:1, whose stage takes longest; "
    no_other = f"GPU:0 {waits}no other cut that fits is predicted to be faster"
    assert no_other in told(result)
    by_hand = altered(result, cuts=("dense",))
    assert f"GPU:0 {waits}--cuts determines the cuts" in told(by_hand)
    first, second = result.stages
    busy = altered(result, stages=(first, altered(second, bubble_s=0.0)))
    assert not [line for line in told(busy) if "idles" in line]


def told(result: Layers) -> list[str]:
    return [part for part in layers_summary(result) if isinstance(part, str)]


def test_the_prediction_s_interval_has_the_unit_of_what_it_is_about(
    subject: ReportSubject, result: Layers
) -> None:
    known = replace(subject, result=inside(result, "predicted", ci95=(0.5, 0.75)))
    (table,) = [table for table in tables_of(known) if table.kind.id == "predicted"]
    heads = ["step time, ms", "from (95 %), ms", "to (95 %), ms"]
    assert [column.head for column in table.columns] == heads
    assert [exact(0.5, column) for column in table.columns] == ["500"] * 3
