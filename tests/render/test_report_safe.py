"""What stands in a result is shown and never acted on.

That goes for a browser, a spreadsheet, a Markdown reader and a terminal.
"""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest

from gpubalance.jobs.report import read_subjects
from gpubalance.render.report.charts import charts_of
from gpubalance.render.report.charts.chart import Charts
from gpubalance.render.report.page import html_page
from gpubalance.render.report.text import (
    csv_text,
    markdown,
    markdown_cell,
    spreadsheet_text,
)
from gpubalance.results.subject import ReportSubject
from tests.render import samples

pytestmark = pytest.mark.xdist_group("page")

HOSTILE = (
    "<script>alert(1)</script><img src=https://evil.example/x onerror=alert(2)>",
    "$\\frac{1}{$ | `rm` [x](javascript:alert(3)) \x1b[31mred\x1b[0m",
)


def hostile(folder: Path) -> tuple[ReportSubject, ...]:
    """The pair's results with hostile names, model and warnings for each reader.

    One name has 10,000 characters.
    """
    probe = samples.document(samples.PROBE)
    plan = samples.document(samples.BALANCE)
    for document in (probe, plan, plan["balance"]["run"]):
        for device, name in zip(document["devices"], HOSTILE, strict=True):
            device["name"] = name
        document["devices"][1]["uuid"] = "‮" + "</style><b>" + "X" * 10_000
        document["settings"]["model"] = '=HYPERLINK("http://evil.example";"x")'
        acts = {
            "message": "--></svg><script>1</script>\n# x",
            "next": "@evil {{ 7*7 }}",
        }
        document["warnings"] = [{"code": "<b>", **acts}]
        document["created"] = "<i>now</i>"
    plan["probed"] = probe["created"]
    there = samples.written(folder, "b<svg onload=x>.json", probe)
    return read_subjects([samples.written(folder, "a.json", plan), there])


def test_a_page_of_hostile_text_has_no_element_of_theirs(tmp_path: Path) -> None:
    subjects = hostile(tmp_path)
    html = html_page(subjects, [charts_of(subjects[0]), Charts((), {})])
    page = samples.Page(html)
    theirs = {"script", "img", "b", "i", "iframe", "object", "embed", "link", "base"}
    assert not theirs & set(page.tags)
    assert not [tag for tag in page.tags if tag.startswith("@")]
    assert page.tags.count("style") == 1
    assert all(re.fullmatch(r"#[\w.-]+", reference) for reference in page.references)
    assert "<script>alert(1)</script>" in page.text  # shown, as text
    assert "{{ 7*7 }}" in page.text
    assert not set(html) & {"\x1b", "‮"}
    assert "X" * 2001 not in html


def test_the_page_needs_nothing_else(html: str) -> None:
    assert "http" not in html.replace("http-equiv", "")
    assert "//" not in re.sub(r"<!--.*?-->", "", html)
    assert "<script" not in html
    assert "javascript:" not in html
    assert "@import" not in html
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', html)
    assert policy is not None
    begins = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert policy[1].startswith(begins)
    assert html.index("Content-Security-Policy") < html.index("<style")
    page = samples.Page(html)
    assert all(reference.startswith("#") for reference in page.references)
    assert {reference[1:] for reference in page.references} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))


@pytest.mark.parametrize("sign", list("=+-@＝＋－＠"))
def test_no_text_begins_a_formula(sign: str) -> None:
    assert spreadsheet_text(f"{sign}1+1") == f"'{sign}1+1"
    assert spreadsheet_text(f" \t\r\n{sign}1") == f"'{sign}1"
    assert spreadsheet_text(f"a;{sign}1") == f"a;'{sign}1"
    assert spreadsheet_text(f"a{sign}b") == f"a{sign}b"


def test_a_csv_of_hostile_text_has_numbers_and_no_formula(tmp_path: Path) -> None:
    text = csv_text(hostile(tmp_path))
    rows = list[dict[str, str]]()
    for table in text.split("\n\n"):
        rows += csv.DictReader(io.StringIO(table))
    for row in rows:
        for value in row.values():
            assert not value or value[0] not in "=+@\t\r＝＋－＠"
            if value.startswith("-"):
                float(value)
    losses = [float(row["rate"]) for row in rows if row["table"] == "gap"]
    assert min(losses) < 0
    models = {row["value"] for row in rows if row.get("setting") == "model"}
    assert models == {"""'=HYPERLINK("http://evil.example";"x")"""}
    assert "\x1b" not in text


def test_markdown_of_hostile_text_is_text(tmp_path: Path) -> None:
    text = markdown(hostile(tmp_path))
    assert not re.search(r"<[a-z/!]", text)
    assert not re.search(r"(?<!\\)`", text)
    assert not re.search(r"(?<!\\)\[", text)
    for block in text.split("\n\n"):
        if block.startswith("|"):
            cells = {len(re.split(r"(?<!\\)\|", line)) for line in block.splitlines()}
            assert len(cells) == 1
    assert markdown_cell("=1|2 <b>") == "'=1\\|2 &lt;b&gt;"
