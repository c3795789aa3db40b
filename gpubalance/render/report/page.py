"""A report as one HTML file that needs nothing else: no script and nothing from a network."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from gpubalance.render.report.charts.chart import NARROW, WIDE, Charts
from gpubalance.render.report.tables import tables_of
from gpubalance.render.report.text import answer_of, groups, terms
from gpubalance.render.table import rounded
from gpubalance.results.subject import ReportSubject, warnings_of
from gpubalance.text import clean

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
