"""`gpubalance report`."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubalance.cli.output import check_file, make_folder, write_file
from gpubalance.errors import EnvironmentFault, UsageError
from gpubalance.settings.record import Record, output_option
from gpubalance.system.files import is_among
from gpubalance.text import clean_lines

if TYPE_CHECKING:
    from gpubalance.render.report.charts.chart import Charts
    from gpubalance.results.subject import ReportSubject

_NEEDED = ("matplotlib", "jinja2")
_INSTALL = (
    "pip install '.[report]' in gpubalance's checkout, or run this there: "
    "GPUBALANCE_EXTRAS=report scripts/gpubalance report …"
)
_CAN_WRITE = (  # fits into a terminal's line
    "\nit can write a page (--html), pictures (--png) and tables (--markdown, --csv)"
)

# What --share takes out: of one, and of several.
_TAKEN_OUT = {
    "uuid": ("UUID (now a number)", "UUIDs (now numbers)"),
    "host": ("host (now a number)", "hosts (now numbers)"),
    "model": ("name of a model (now a number)", "names of models (now numbers)"),
    "data": ("name of data (now a number)", "names of data (now numbers)"),
    "layer": ("name of a layer (now a number)", "names of layers (now numbers)"),
    "optimizer": (
        "name of an optimizer (now a number)",
        "names of optimizers (now numbers)",
    ),
    "device": ("name in a profile (now a number)", "names in a profile (now numbers)"),
    "command": ("command (now a number)", "commands (now numbers)"),
    "text": ("words of a text that may be names", "words of texts that may be names"),
    "version": ("version suffix", "version suffixes"),
    "hash": ("hash of your code", "hashes of your code"),
    "step": ("list of a step's operations", "lists of steps' operations"),
    "line": ("line of your code", "lines of your code"),
    "log": ("path of a log", "paths of logs"),
    "output": ("end of a program's output", "ends of programs' output"),
}
_STAYS = (
    "kept: figures, settings, times, versions, and the names of cards and processor\n"
    "nothing was sent; read the file before you share it"
)

Results = Annotated[
    list[Path],
    typer.Argument(
        metavar="RESULT.json",
        help="Result files, written with -o by commands that measure or plan.",
    ),
]


class ReportOptions(Record):
    """What is written, and where."""

    html: Path | None = output_option("--html FILE", "Write one HTML page with charts.")
    png: Path | None = output_option(
        "--png DIR", "Write each chart as a PNG file to DIR."
    )
    markdown: bool = output_option(
        "--markdown", "Print the tables as Markdown.", default=False
    )
    csv: bool = output_option("--csv", "Print every number as CSV.", default=False)
    share: Path | None = output_option(
        "--share FILE",
        "Write a copy without hosts, UUIDs, paths, logs and the names of your "
        "models, to attach to an issue. Nothing is sent.",
    )
    overwrite: bool = output_option(
        "--overwrite", "Overwrite files that exist.", default=False
    )
    quiet: bool = output_option(
        "--quiet -q", "Show no progress on stderr.", default=False
    )


def report(results: Results, wanted: ReportOptions) -> None:
    """Without an option, a summary of each result is printed.

    Example: gpubalance report plan.json --html report.html
    """
    from gpubalance.cli.output import say
    from gpubalance.jobs.report import read_subjects
    from gpubalance.render.report.text import csv_text, markdown

    if wanted.share is not None and len(results) > 1:
        raise UsageError(
            f"--share takes one result, not {len(results)}",
            remedy="give them one at a time",
        )
    is_drawn = wanted.html is not None or wanted.png is not None
    if wanted.markdown and wanted.csv:
        raise UsageError(
            "--markdown and --csv both print on stdout",
            remedy="give one of them at a time",
        )
    if wanted.html is not None:
        _check_written("--html", wanted.html, results, overwrite=wanted.overwrite)
    if wanted.share is not None:
        _check_written("--share", wanted.share, results, overwrite=wanted.overwrite)
    if is_drawn:
        _check_installed()
    subjects = read_subjects(results)
    if is_drawn:
        written = _draw(subjects, wanted)
        if not wanted.quiet:
            say(clean_lines("\n".join(written)), sys.stderr)
    if wanted.share is not None:
        _share(results[0], wanted.share, quiet=wanted.quiet)
    if wanted.markdown:
        say(markdown(subjects), sys.stdout)
    elif wanted.csv:
        say(csv_text(subjects), sys.stdout)
    elif not is_drawn and wanted.share is None:
        say("\n\n".join(map(_summary, subjects)), sys.stdout)
        if not wanted.quiet:
            say(_CAN_WRITE, sys.stderr)


def _check_written(
    option: str, file: Path, results: Sequence[Path], *, overwrite: bool
) -> None:
    if is_among(file, results):
        raise UsageError(
            f"{option} {file} would overwrite one of the results",
            remedy=f"give another {option}",
        )
    check_file(option, file, overwrite=overwrite)


def _share(result: Path, file: Path, *, quiet: bool) -> None:
    from gpubalance.cli.output import say
    from gpubalance.jobs.report import shareable

    copy, taken_out = shareable(result)
    write_file("--share", file, copy.model_dump_json(indent=2) + "\n")
    lines = [f"wrote {file}: {result} without"]
    for kind, count in taken_out.items():
        one, several = _TAKEN_OUT[kind]
        lines.append(f"  {count} {one if count == 1 else several}")
    lines.append(_STAYS)
    if not quiet:
        say(clean_lines("\n".join(lines)), sys.stderr)


def _check_installed() -> None:
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise EnvironmentFault(
            f"the report needs {' and '.join(missing)}, not installed here",
            remedy=_INSTALL,
        )


def _summary(subject: ReportSubject) -> str:
    """What the command that wrote the result printed, below the file's name."""
    from gpubalance.cli.output import summed_up
    from gpubalance.render.report.text import summary_of

    summary = summed_up(subject.result, summary_of(subject.result))
    return f"{clean_lines(subject.name)}:\n{summary}"


def _draw(subjects: Sequence[ReportSubject], wanted: ReportOptions) -> list[str]:
    """Draws everything, then writes it; returns lines about what was written."""
    from gpubalance.render.report.charts import charts_of
    from gpubalance.render.report.page import html_page

    charts = [charts_of(subject) for subject in subjects]
    pictures: dict[Path, bytes] = {}
    if wanted.png is not None:
        pictures = _pictures(subjects, charts, wanted.png)
        make_folder("--png", wanted.png)
        for path in pictures:
            check_file("--png", path, overwrite=wanted.overwrite)
    written = []
    if wanted.html is not None:
        write_file("--html", wanted.html, html_page(subjects, charts))
        written.append(f"wrote {wanted.html}")
    for path, picture in pictures.items():
        write_file("--png", path, picture)
    if wanted.png is not None:
        written.append(f"wrote {len(pictures)} charts into {wanted.png}")
    return written


def _pictures(
    subjects: Sequence[ReportSubject], charts: Sequence[Charts], folder: Path
) -> dict[Path, bytes]:
    """Each chart by its path: `plan-curves.png`, numbered if an earlier result has the name."""
    from gpubalance.render.report.charts.chart import WIDE

    pictures: dict[Path, bytes] = {}
    names: set[str] = set()
    for subject, its_charts in zip(subjects, charts, strict=True):
        stem = re.sub(r"[^\w.-]+", "-", Path(subject.name).stem)[:60]
        name = stem
        number = 2
        while name in names:
            name = f"{stem}-{number}"
            number += 1
        names.add(name)
        for chart in its_charts.drawn:
            pictures[folder / f"{name}-{chart.id}.png"] = chart.png(WIDE)
    return pictures
