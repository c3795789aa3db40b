"""`gpubalance report`."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubalance.errors import EnvironmentFault, UsageError
from gpubalance.settings.options import output_option
from gpubalance.settings.record import Record
from gpubalance.text import clean_lines

if TYPE_CHECKING:
    from gpubalance.render.report.charts.chart import Charts
    from gpubalance.results.subject import ReportSubject

_NEEDED = ("matplotlib", "jinja2")
_INSTALL = (
    "pip install matplotlib jinja2; in a checkout GPUBALANCE_EXTRAS=report scripts/gpubalance "
    "report …"
)

_CAN_WRITE = (
    "\nit can write a page (--html FILE), pictures (--png DIR) and tables (--markdown, --csv)"
)

Results = Annotated[
    list[Path],
    typer.Argument(metavar="RESULT.json", help="What commands that measure or plan wrote with -o."),
]


class ReportOptions(Record):
    """What is written, and where."""

    html: Path | None = output_option("--html FILE", "Write a page with charts, in one file.")
    png: Path | None = output_option("--png DIR", "Write each chart as a PNG into a folder.")
    markdown: bool = output_option("--markdown", "Print the tables as Markdown.", default=False)
    csv: bool = output_option("--csv", "Print every number as CSV.", default=False)
    overwrite: bool = output_option("--overwrite", "Replace files that exist.", default=False)
    quiet: bool = output_option("--quiet -q", "No progress on stderr.", default=False)


def report(results: Results, wanted: ReportOptions) -> None:
    """Without an option it prints a summary of each result.

    Example: gpubalance report plan.json --html report.html
    """
    from gpubalance.cli.output import check_file, say
    from gpubalance.jobs.report import read_subjects
    from gpubalance.render.report.text import csv_text, markdown

    drawn = wanted.html is not None or wanted.png is not None
    if wanted.markdown and wanted.csv:
        raise UsageError(
            "--markdown and --csv both print on stdout", remedy="give one of them at a time"
        )
    page = wanted.html
    if page is not None and any(path.resolve() == page.resolve() for path in results):
        raise UsageError(f"--html {page} is one of the results", remedy="give another --html")
    if page is not None:
        check_file("--html", page, overwrite=wanted.overwrite)
    missing = [name for name in _NEEDED if find_spec(name) is None] if drawn else []
    if missing:
        raise EnvironmentFault(
            f"{' and '.join(missing)}, which draw the report, are not installed", remedy=_INSTALL
        )
    subjects = read_subjects(results)
    if drawn:
        told = _draw(subjects, wanted)
        if not wanted.quiet:
            say(clean_lines(told), sys.stderr)
    if wanted.markdown or wanted.csv:
        say(markdown(subjects) if wanted.markdown else csv_text(subjects), sys.stdout)
    elif not drawn:
        say("\n\n".join(map(_summary, subjects)), sys.stdout)
        say(_CAN_WRITE, sys.stderr)


def _summary(subject: ReportSubject) -> str:
    """What the command that wrote the result printed, below the file's name."""
    from gpubalance.cli.output import summed_up
    from gpubalance.render.report.words import told_of

    summary = summed_up(subject.result, told_of(subject.result), ("", ()))
    return f"{clean_lines(subject.name)}:\n{summary}"


def _draw(subjects: Sequence[ReportSubject], wanted: ReportOptions) -> str:
    """Draws everything, then writes it; returns a text about what was written."""
    from gpubalance.cli.output import check_file, make_folder, write_file
    from gpubalance.render.report.charts import charts_of
    from gpubalance.render.report.page import html_page

    html, png, told = wanted.html, wanted.png, []
    charts = [charts_of(subject) for subject in subjects]
    pictures = _pictures(subjects, charts, png) if png is not None else {}
    if png is not None:
        make_folder("--png", png)
        for path in pictures:
            check_file("--png", path, overwrite=wanted.overwrite)
    if html is not None:
        write_file("--html", html, html_page(subjects, charts))
        told.append(f"wrote {html}")
    for path, picture in pictures.items():
        write_file("--png", path, picture)
    return "\n".join([*told, *([f"wrote {len(pictures)} charts into {png}"] if png else [])])


def _pictures(
    subjects: Sequence[ReportSubject], charts: Sequence[Charts], folder: Path
) -> dict[Path, bytes]:
    """Each chart by its path: `plan-curves.png`, with the result's number if several have that
    name.
    """
    from gpubalance.render.report.charts.style import WIDE

    pictures: dict[Path, bytes] = {}
    stems = [re.sub(r"[^\w.-]+", "-", Path(subject.name).stem)[:60] for subject in subjects]
    for number, (stem, of) in enumerate(zip(stems, charts, strict=True)):
        name = f"{stem}-{number + 1}" if stem in stems[:number] else stem
        for chart in of.drawn:
            pictures[folder / f"{name}-{chart.id}.png"] = chart.png(WIDE)
    return pictures
