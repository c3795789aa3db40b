"""`gpubalance report`."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubalance.cli.options import QuietOption, output_option
from gpubalance.errors import EnvironmentFault, UsageError

if TYPE_CHECKING:
    from gpubalance.render.report.charts.chart import Charts
    from gpubalance.results.subject import Subject

_NEEDED = ("matplotlib", "jinja2")
_INSTALL = "pip install matplotlib jinja2; in a checkout GPUBALANCE_EXTRAS=report scripts/gpubalance report …"

Results = Annotated[
    list[Path], typer.Argument(metavar="RESULT.json", help="What commands that measure or plan wrote with -o.")
]
Html = Annotated[
    Path | None,
    output_option("--html", metavar="FILE", help="Write a page with charts, in one file."),
]
Png = Annotated[
    Path | None,
    output_option("--png", metavar="DIR", help="Write each chart as a PNG into a folder."),
]
Markdown = Annotated[bool, output_option("--markdown", help="Print the tables as Markdown.")]
Csv = Annotated[bool, output_option("--csv", help="Print every number as CSV.")]
Overwrite = Annotated[bool, output_option("--overwrite", help="Replace files that exist.")]


def report(
    results: Results,
    html: Html = None,
    png: Png = None,
    markdown: Markdown = False,
    csv: Csv = False,
    overwrite: Overwrite = False,
    quiet: QuietOption = False,
) -> None:
    """Example: gpubalance report plan.json --html report.html"""
    _check(results, html, png, markdown=markdown, csv=csv, overwrite=overwrite)
    from gpubalance.cli.output import say
    from gpubalance.jobs.report import read_subjects
    from gpubalance.text import clean_lines

    subjects = read_subjects(results)
    if html is not None or png is not None:
        told = _draw(subjects, html, png, overwrite=overwrite)
        if not quiet:
            say(clean_lines(told), sys.stderr)
    if markdown:
        from gpubalance.render.report.markdown import markdown as markdown_text

        say(markdown_text(subjects), sys.stdout)
    elif csv:
        from gpubalance.render.report.spreadsheet import csv_text

        say(csv_text(subjects), sys.stdout)


def _check(
    results: Sequence[Path], html: Path | None, png: Path | None, *, markdown: bool, csv: bool, overwrite: bool
) -> None:
    """Raises UsageError for options that do not go together, EnvironmentFault for missing folders or packages."""
    from gpubalance.cli.output import check_file

    if markdown and csv:
        raise UsageError("--markdown and --csv both print on stdout", remedy="give one of them at a time")
    if html is None and png is None and not markdown and not csv:
        raise UsageError("nothing was asked for", remedy="give --html FILE, --png DIR, --markdown or --csv")
    if html is not None:
        if any(path.resolve() == html.resolve() for path in results):
            raise UsageError(f"--html {html} is one of the results", remedy="give another --html")
        check_file("--html", html, overwrite=overwrite)
    if png is not None:
        if png.exists() and not png.is_dir():
            raise UsageError(f"--png {png} is not a folder", remedy="give a folder's name")
        if not png.is_dir() and not png.parent.is_dir():
            raise EnvironmentFault(f"the folder above --png {png} does not exist", remedy=f"mkdir -p {png}")
    missing = [name for name in _NEEDED if find_spec(name) is None] if html is not None or png is not None else []
    if missing:
        raise EnvironmentFault(f"{' and '.join(missing)}, which draw the report, are not installed", remedy=_INSTALL)


def _draw(subjects: Sequence[Subject], html: Path | None, png: Path | None, *, overwrite: bool) -> str:
    """Draws everything, then writes it; returns a text about what was written."""
    from gpubalance.cli.output import check_file, write_file
    from gpubalance.render.report.charts import charts_of
    from gpubalance.render.report.page import html_page

    charts = [charts_of(subject) for subject in subjects]
    pictures = _pictures(subjects, charts, png) if png is not None else {}
    if png is not None and png.is_dir():
        for path in pictures:
            check_file("--png", path, overwrite=overwrite)
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
    from gpubalance.render.report.charts.chart import WIDE
    from gpubalance.render.report.charts.svg import chart_png

    pictures: dict[Path, bytes] = {}
    for subject, of in zip(subjects, charts, strict=True):
        stem = re.sub(r"[^\w.-]+", "-", Path(subject.name).stem)[:60]
        number = ""
        while any(folder / f"{stem}{number}-{chart.id}.png" in pictures for chart in of.drawn):
            number = f"-{int(number[1:] or 1) + 1}" if number else "-2"
        for chart in of.drawn:
            pictures[folder / f"{stem}{number}-{chart.id}.png"] = chart_png(chart, WIDE)
    return pictures


def _make(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(f"can't make --png {folder}: {error.strerror}", remedy="give another --png") from None
