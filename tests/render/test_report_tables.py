"""Every number of a result is in the report's tables, and every number there is the result's."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from gpubalance.render.report.tables import tables_of
from gpubalance.render.report.text import answer_of, csv_text, groups, markdown
from gpubalance.render.table import rounded
from gpubalance.results.subject import ReportSubject
from tests.render import samples
from tests.support.known import known

pytestmark = pytest.mark.xdist_group("page")

# What is no measurement.
_NOT_IN_TABLES = {"schema_version", "devices", "device", "cpu_count", "calls"}
_NOT_IN_TABLES |= {"input_shapes", "segments"}
_NUMBERS_OF_BLOCKS = {0.0, *map(float, range(20))}  # which stand as text: 0–7


def numbers(value: Any, name: str = "") -> Iterator[float]:
    """All numbers in a result, except those that are no measurement."""
    if name in _NOT_IN_TABLES:
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from numbers(inner)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield value


def rows_of(*subjects: ReportSubject) -> list[dict[str, str]]:
    tables = csv_text(subjects).split("\n\n")
    return [row for table in tables for row in csv.DictReader(io.StringIO(table))]


def values_of(*subjects: ReportSubject) -> set[float]:
    """Every number without its sign, as losses are below 0 in a table."""
    found = set()
    for row in rows_of(*subjects):
        for value in filter(None, row.values()):
            try:
                found.add(abs(float(value)))
            except ValueError:  # a split's batches: 136/88
                found |= {float(batch) for batch in value.split("/") if batch.isdigit()}
    return found


@pytest.mark.parametrize(
    "path", sorted(samples.DATA.glob("*.json")), ids=lambda path: path.stem
)
def test_every_number_of_a_result_is_in_the_csv(path: Path) -> None:
    wanted = {abs(value) for value in numbers(samples.document(path))}
    there = values_of(samples.subject(path))
    assert len(wanted) > 50
    missing = set()
    for value in wanted:
        if not any(abs(value - other) <= 1e-6 * other for other in there):
            missing.add(value)
    assert missing <= _NUMBERS_OF_BLOCKS


def test_a_device_that_was_not_probed_is_told_as_such(tmp_path: Path) -> None:
    document = samples.document(samples.PROBE)
    document["probes"][1]["same_as"] = "GPU:0"
    rows = rows_of(samples.subject(samples.written(tmp_path, "equal.json", document)))
    found = [(row["device"], row["same_as"]) for row in rows if row["table"] == "model"]
    assert found == [("GPU:0", ""), ("GPU:1", "GPU:0")]


def test_page_tables_are_right(html: str, subjects: tuple[ReportSubject, ...]) -> None:
    page = samples.Page(html)
    run = known(subjects[0].run)
    steps = page.tables["Steps"]
    assert steps[1][0] == "chosen"
    seen = steps[1][steps[0].index("throughput, samples/s")]
    assert seen == f"{run.throughput.median:.0f}"
    told = steps[1][steps[0].index("step time, ms")]
    assert told == f"{run.step_time_s.median * 1e3:.4g}"
    times = [row[3] for row in page.tables["Step times"] if row[0] == "chosen"]
    for seconds in run.step_time_s.samples:
        assert f"{seconds * 1e3:.4g}" in times
    sections = html.split('<section id="result-')[1:]
    for subject, section in zip(subjects, sections, strict=True):
        assert answer_of(subject.result).headline in unescape(section)
        assert section.index('class="told"') < section.index("<svg")
        for table in tables_of(subject):
            shown = page.tables[table.kind.title]
            for row in table.rows:
                pairs = zip(row, table.columns, strict=True)
                assert [rounded(cell, column) for cell, column in pairs] in shown


def test_the_page_has_every_formula(html: str) -> None:
    text = samples.Page(html).text
    found = [formula for _, formulas in groups() for formula in formulas]
    assert len(found) > 50
    for formula in found:
        assert formula.formula in text
        assert formula.number in text


def test_a_word_is_explained_once_and_as_its_result_means_it() -> None:
    of_layers = samples.DATA / "pair-layers.json"
    for path, has_schedule in ((samples.BALANCE, False), (of_layers, True)):
        text = markdown([samples.subject(path)])
        words = re.findall(r"(?m)^- \*\*([^*]+)\*\*, ", text)
        assert len(words) == len(set(words)) > 5
        assert ("- **predicted**, the simulated schedule" in text) is has_schedule
    text = markdown([samples.subject(samples.RUN)])
    assert "- **rare slow steps**, max(0, T − M)" in text


def test_a_table_of_the_csv_has_no_column_without_a_value() -> None:
    subjects = [samples.subject(path) for path in (samples.BALANCE, samples.RUN)]
    tables = csv_text(subjects).split("\n\n")
    for table in tables:
        rows = list(csv.DictReader(io.StringIO(table)))
        assert len({row["table"] for row in rows}) == 1
        assert all(any(row[name] for row in rows) for name in rows[0])
    files = {row["file"] for row in rows_of(*subjects) if row["table"] == "parts"}
    assert files == {"pair-balance.json", "pair-run.json"}


def test_a_longer_table_than_a_page_holds_says_so(tmp_path: Path) -> None:
    from gpubalance.render.report.charts.chart import Charts
    from gpubalance.render.report.page import MOST_ROWS, html_page

    document = samples.document(samples.RUN)
    times = [0.05 + i * 1e-6 for i in range(3000)]
    at_s = [0.05 * i for i in range(3000)]
    document["step_time_s"] |= {"samples": times, "at_s": at_s}
    subject = samples.subject(samples.written(tmp_path, "long.json", document))
    text = html_page([subject], [Charts((), {})])
    total = len(times) + len(document["baselines"]["even"]["step_time_s"]["samples"])
    assert f"The first {MOST_ROWS} of {total} rows" in samples.Page(text).text
    assert sum(row["table"] == "samples" for row in rows_of(subject)) == total


def test_a_run_without_solo_bests_names_no_probe_as_its_own(tmp_path: Path) -> None:
    run = samples.document(samples.RUN)
    run["baselines"]["solo_best"] = []
    path = samples.written(tmp_path, "run.json", run)
    source = known(samples.subject(path, samples.PROBE).probe_from)
    assert source.endswith("which is not the probe that this run was made with")
