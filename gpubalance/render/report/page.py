"""A report as one HTML file that needs nothing else: no script and nothing from a network."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from gpubalance.guide import read_chapter
from gpubalance.render.independent import independent_summary
from gpubalance.render.layers import layers_summary
from gpubalance.render.plan import plan_headline, plan_summary
from gpubalance.render.probe import probe_headline, probe_summary
from gpubalance.render.queue import queue_summary
from gpubalance.render.report.charts.style import NARROW, WIDE, Charts
from gpubalance.render.report.tables import tables_of
from gpubalance.render.run import run_headline, run_summary
from gpubalance.render.table import BLANK, Paragraph, TextTable, rounded
from gpubalance.results.records import Reported
from gpubalance.results.subject import ReportSubject, warnings_of
from gpubalance.text import clean

# By the kind of the result, as are the headlines.
_SUMMARIES: dict[str, Callable[[Any], Iterator[Paragraph]]] = {
    "probe": probe_summary,
    "plan": plan_summary,
    "run": run_summary,
    "independent": independent_summary,
    "layers": layers_summary,
    "queue": queue_summary,
}
# Of these a terminal may show first what the user's input pipeline gives.
_HEADLINES: dict[str, Callable[[Any], str]] = {
    "probe": probe_headline,
    "plan": plan_headline,
    "run": run_headline,
}
_CHAPTERS = ("numbers", "batch")
_TABLE = re.compile(
    r"(?m)^(?:## (.*)|(.*):)\n\n(?:[^#|\n].*\n+)*\| number \| formula "
    r"\|.*\n\|[-|]+\|\n((?:\|.*\|\n)+)"
)


class Answer(NamedTuple):
    """The sentence for a reader who stops after ten seconds, and the others with their table."""

    headline: str
    parts: tuple[str | TextTable, ...]


def summary_of(result: Reported) -> Iterator[Paragraph]:
    """What a terminal shows of a result."""
    return _SUMMARIES[result.kind](result)


def answer_of(result: Reported) -> Answer:
    """The same without pictures, beginning with what the devices gave."""
    parts = []
    for part in summary_of(result):
        if isinstance(part, str | TextTable) and part not in ("", BLANK):
            parts.append(part)
    headline_of = _HEADLINES.get(result.kind)
    headline = headline_of(result) if headline_of else str(parts[0])
    parts.remove(headline)
    return Answer(headline, tuple(parts))


class Formula(NamedTuple):
    """A number, its formula in the signs of `terms`, and how it is measured or whence it comes."""

    number: str
    formula: str
    meaning: str


def terms() -> str:
    """What the signs in the formulas are."""
    paragraphs = read_chapter(_CHAPTERS[0]).text.split("\n\n")
    return " ".join(paragraphs[2].split())


def groups() -> Iterator[tuple[str, list[Formula]]]:
    """Each table of formulas under its title."""
    for chapter in _CHAPTERS:
        for title, lead, rows in _TABLE.findall(read_chapter(chapter).text):
            formulas = []
            for row in rows.splitlines():
                cells = re.split(r"(?<!\\) \| ", row.strip("| "))
                formulas.append(Formula(*[cell.replace(r"\|", "|") for cell in cells]))
            yield (title or lead).replace("`", ""), formulas


# A page with more rows opens slowly on a phone; --csv has them all.
MOST_ROWS = 1000
_LONGEST_TEXT = 2000


def html_page(subjects: Sequence[ReportSubject], charts: Sequence[Charts]) -> str:
    """One page for all subjects, each with its charts. Text from results is always escaped."""
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        loader=FunctionLoader(_source),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    sections: list[dict[str, object]] = []
    for subject, its_charts in zip(subjects, charts, strict=True):
        section = {
            "id": f"result-{len(sections) + 1}",
            "subject": subject,
            "answer": answer_of(subject.result),
            "charts": its_charts,
        }
        sections.append(section)
    return environment.get_template("page.html.j2").render(
        sections=sections,
        title="gpubalance: " + ", ".join(subject.name for subject in subjects),
        terms=terms(),
        formulas=list(groups()),
        max_rows=MOST_ROWS,
        widths={"wide": WIDE, "narrow": NARROW},
        rounded=rounded,
        tables_of=tables_of,
        warnings_of=warnings_of,
    )


def _source(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _shown(value: object) -> object:
    """Puts text from outside on one line without control characters; Jinja escapes it later."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return clean(value, _LONGEST_TEXT)
    return value
