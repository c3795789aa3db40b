from __future__ import annotations

from importlib.metadata import version
from typing import Any

import pytest

from gpubalance.render.probe import curve_lines, probe_summary
from gpubalance.render.table import lines_of, warning_lines
from gpubalance.results.common import Warning_
from gpubalance.results.probe import Probe
from gpubalance.results.records import read_record, read_result
from gpubalance.results.subject import warnings_of
from gpubalance.system.versions import numbers
from tests.jobs.probes import inside
from tests.render import samples
from tests.render.golden import (
    DATA,
    GOLDEN,
    REPORTS,
    SUMMARIES,
    TEXTS,
    kept,
    path,
    report,
    told,
)
from tests.render.samples import PROBE
from tests.support.altered import altered
from tests.support.known import known


@pytest.mark.parametrize(("name", "width"), SUMMARIES)
def test_a_summary_is_as_it_was_looked_at_and_short(name: str, width: int) -> None:
    """A summary is as it was looked at short and no line but a command is too wide."""
    text = kept(name, width)
    assert text + "\n" == path(name, width).read_text(encoding="utf-8")
    assert max(map(len, text.split("\nnext: ")[0].splitlines())) <= width
    assert "\nnext: gpubalance " in text
    result = read_result(DATA / f"{name}.json")
    if width == 80:
        assert "samples/s" in text.splitlines()[0]
        more = max(0, len(result.devices) - 2)  # rows than a pair has
        found = len(text.splitlines()) - len(warning_lines(warnings_of(result)))
        assert found <= 31 + more


@pytest.mark.xdist_group("page")
@pytest.mark.parametrize("name", REPORTS)
def test_a_report_and_its_charts_are_as_they_were_looked_at(name: str) -> None:
    """`python -m tests.render.golden` writes the files, for the next look."""
    if numbers(version("matplotlib")) < (3, 11):
        pytest.skip("an older matplotlib chooses other ticks")
    for file, text in report(name).items():
        assert text + "\n" == (GOLDEN / file).read_text(encoding="utf-8"), file


@pytest.mark.parametrize("name", TEXTS)
def test_screens_and_events_are_as_they_were_looked_at(name: str) -> None:
    text = "\n".join(TEXTS[name]()) + "\n"
    assert text == (GOLDEN / name).read_text(encoding="utf-8")


def test_the_course_of_goodput_is_of_several_global_batches() -> None:
    plan = known(samples.goodput().plan)
    few = inside(plan, "predicted", by_global_batch=plan.predicted.by_global_batch[:1])
    course = "goodput at global batches of"
    assert (course in told(plan), course in told(few)) == (True, False)


def test_a_curve_with_its_marks_is_whole_at_50_columns() -> None:
    (first, _) = read_record(PROBE, Probe).probes
    rough = altered(first.curve[1], precise=False)
    lines = curve_lines((first.curve[0], rough, *first.curve[2:]), 50)
    assert max(map(len, lines)) <= 50
    assert any(line.endswith("± over 1 %") for line in lines)


def test_a_device_without_a_point_says_that_nothing_was_measured() -> None:
    probe = read_record(PROBE, Probe)
    unmeasured: Any = {"curve": (), "batch_limit": None, "step_time_model": None}
    unmeasured |= {"solo_best": None, "sensible": None}
    second = altered(probe.probes[1], **unmeasured)
    left = altered(probe, probes=(probe.probes[0], second), complete=False)
    lines = lines_of(probe_summary(left))
    (line,) = [line for line in lines if line.startswith("GPU:1")]
    assert line == "GPU:1  GeForce GTX 1080: nothing was measured yet"


def test_a_path_in_a_warning_is_not_broken() -> None:
    path = f"/home/somebody/.local/state/gpubalance/logs/{'20261123T201039.664456-' * 3}run.log"
    whole = f"the worker's whole log is {path}"
    warning = Warning_(code="pipeline-unknown", message="it failed", next=whole)
    assert [line.strip() for line in warning_lines([warning], 80)][-1] == path
