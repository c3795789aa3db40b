"""`gpubalance report`."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubalance.cli.options import output_option
from gpubalance.errors import EnvironmentFault, UsageError
from gpubalance.settings.record import Record

if TYPE_CHECKING:
    from gpubalance.render.report.charts.chart import Charts
    from gpubalance.results.subject import Subject

_NEEDED = ("matplotlib", "jinja2")
_INSTALL = "pip install matplotlib jinja2; in a checkout GPUBALANCE_EXTRAS=report scripts/gpubalance report …"

Results = Annotated[
    list[Path], typer.Argument(metavar="RESULT.json", help="What commands that measure or plan wrote with -o.")
]


class Wanted(Record):
    """What is written, and where."""

    html: Path | None = output_option("--html FILE", "Write a page with charts, in one file.")
    png: Path | None = output_option("--png DIR", "Write each chart as a PNG into a folder.")
    markdown: bool = output_option("--markdown", "Print the tables as Markdown.", default=False)
    csv: bool = output_option("--csv", "Print every number as CSV.", default=False)
    overwrite: bool = output_option("--overwrite", "Replace files that exist.", default=False)
    quiet: bool = output_option("--quiet -q", "No progress on stderr.", default=False)


def report(results: Results, wanted: Wanted) -> None:
    """Example: gpubalance report plan.json --html report.html"""
    _check(results, wanted)
    from gpubalance.cli.output import say
    from gpubalance.jobs.report import read_subjects
    from gpubalance.text import clean_lines

    subjects = read_subjects(results)
    if wanted.html is not None or wanted.png is not None:
        told = _draw(subjects, wanted)
        if not wanted.quiet:
            say(clean_lines(told), sys.stderr)
    if wanted.markdown:
        from gpubalance.render.report.markdown import markdown as markdown_text

        say(markdown_text(subjects), sys.stdout)
    elif wanted.csv:
        from gpubalance.render.report.spreadsheet import csv_text

        say(csv_text(subjects), sys.stdout)


def _check(results: Sequence[Path], wanted: Wanted) -> None:
    """Raises UsageError for options that do not go together, EnvironmentFault for missing folders or packages."""
    from gpubalance.cli.output import check_file

    html, png = wanted.html, wanted.png
    if wanted.markdown and wanted.csv:
        raise UsageError("--markdown and --csv both print on stdout", remedy="give one of them at a time")
    if html is None and png is None and not wanted.markdown and not wanted.csv:
        raise UsageError("nothing was asked for", remedy="give --html FILE, --png DIR, --markdown or --csv")
    if html is not None:
        if any(path.resolve() == html.resolve() for path in results):
            raise UsageError(f"--html {html} is one of the results", remedy="give another --html")
        check_file("--html", html, overwrite=wanted.overwrite)
    if png is not None:
        if png.exists() and not png.is_dir():
            raise UsageError(f"--png {png} is not a folder", remedy="give a folder's name")
        if not png.is_dir() and not png.parent.is_dir():
            raise EnvironmentFault(f"the folder above --png {png} does not exist", remedy=f"mkdir -p {png}")
    missing = [name for name in _NEEDED if find_spec(name) is None] if html is not None or png is not None else []
    if missing:
        raise EnvironmentFault(f"{' and '.join(missing)}, which draw the report, are not installed", remedy=_INSTALL)


def _draw(subjects: Sequence[Subject], wanted: Wanted) -> str:
    """Draws everything, then writes it; returns a text about what was written."""
    from gpubalance.cli.output import check_file, write_file
    from gpubalance.render.report.charts import charts_of
    from gpubalance.render.report.page import html_page

    html, png = wanted.html, wanted.png
    charts = [charts_of(subject) for subject in subjects]
    pictures = _pictures(subjects, charts, png) if png is not None else {}
    if png is not None and png.is_dir():
        for path in pictures:
            check_file("--png", path, overwrite=wanted.overwrite)
    page = html_page(subjects, charts) if html is not None else ""
    told = []
    if html is not None:
        write_file("--html", html, page)
        told.append(f"wrote {html}")
    if png is not None:
        _make(png)
        for path, picture in pictures.items():
            write_file("--png", path, picture)
        told.append(f"wrote {len(pictures)} charts into {png}")
    return "\n".join(told)


def _pictures(subjects: Sequence[Subject], charts: Sequence[Charts], folder: Path) -> dict[Path, bytes]:
    """Each chart by its path: `plan-curves.png`, with a number if two results have the same name."""
    from gpubalance.render.report.charts.style import WIDE

    pictures: dict[Path, bytes] = {}
    for subject, of in zip(subjects, charts, strict=True):
        stem = re.sub(r"[^\w.-]+", "-", Path(subject.name).stem)[:60]
        number = ""
        while any(folder / f"{stem}{number}-{chart.id}.png" in pictures for chart in of.drawn):
            number = f"-{int(number[1:] or 1) + 1}" if number else "-2"
        for chart in of.drawn:
            pictures[folder / f"{stem}{number}-{chart.id}.png"] = chart.png(WIDE)
    return pictures


def _make(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(f"can't make --png {folder}: {error.strerror}", remedy="give another --png") from None
