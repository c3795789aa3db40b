"""`gpubalance compare`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from gpubalance.cli.options import Printed
from gpubalance.errors import UsageError

Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="RESULT.json",
        help="Two or more. What `run`, `balance`, `plan`, `probe` or `independent` wrote. The first is the baseline.",
    ),
]
FailSlower = Annotated[
    str | None,
    typer.Option(
        "--fail-slower",
        metavar="P%",
        help="Exit with 9 if a result is clearly slower, by more than that many per cent: --fail-slower 5%.",
    ),
]


def compare(
    files: Files,
    output: Printed,
    fail_slower: FailSlower = None,
) -> None:
    """Example: gpubalance compare before.json after.json --fail-slower 5%"""
    from gpubalance.cli.output import Output, width
    from gpubalance.jobs.compare.compare import check_regression
    from gpubalance.jobs.compare.compare import compare as compare_job
    from gpubalance.render.compare import comparison_text

    if len(files) < 2:
        raise UsageError("compare takes two files or more", remedy=f"gpubalance compare {files[0]} OTHER.json")
    most = None if fail_slower is None else _part("--fail-slower", fail_slower)
    out = Output(output, quiet=True)
    comparison = compare_job(files)
    out.give(comparison, lambda found: comparison_text(found, width()))
    if most is not None:
        check_regression(comparison, most)


def _part(option: str, text: str) -> float:
    """0.05 for `5%` or `5`. Raises UsageError for anything that is no percentage.

    `0.05` without a sign is refused: some read it as 5 %, others as 0.05 %.
    """
    match = re.fullmatch(r"(\d{1,2}(?:\.\d{1,9})?)\s*(%?)", text.strip(), re.ASCII)
    if match is None:
        message = f"{option} takes per cent, from 0% to under 100%, not {text!r}"
        raise UsageError(message, remedy=f"for example {option} 5%")
    value = float(match[1])
    if 0 < value < 1 and not match[2]:
        message = f"{option} {text}: is that {100 * value:g}% or {value:g}%?"
        raise UsageError(message, remedy=f"write {option} {100 * value:g}%")
    return value / 100
