"""`gpubalance compare`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BeforeValidator, Field

from gpubalance.cli.options import Printed
from gpubalance.errors import UsageError
from gpubalance.settings.record import Record, output_option
from gpubalance.text import clean

Baseline = Annotated[
    Path,
    typer.Argument(
        metavar="BASELINE.json",
        help="The baseline: a result of `run`, `balance`, `plan`, `probe`, "
        "`independent` or `layers`.",
    ),
]
Others = Annotated[
    list[Path] | None,
    typer.Argument(metavar="RESULT.json", help="Results to compare with it."),
]


def _per_cent(text: str) -> str:
    """The number of per cent.

    One between 0 and 1 without a sign is refused: some read `0.05` as 5 %, others as 0.05 %.
    """
    number = text.strip("% ")
    try:
        value = float(number)
    except ValueError:  # the field refuses it
        return number
    if 0 < value < 1 and number == text.strip():
        raise ValueError(
            f"{number} needs a unit: did you mean {number}% or {100 * value:g}%?"
        )
    return number


class Gate(Record):
    """When the comparison fails; in per cent."""

    fail_slower: (
        Annotated[float, BeforeValidator(_per_cent), Field(ge=0, lt=100)] | None
    ) = output_option(
        "--fail-slower P%",
        "Exit with code 9 if a result is clearly slower by more than this many per "
        "cent: --fail-slower 5%.",
    )


def compare(
    baseline: Baseline, gate: Gate, reporting: Printed, others: Others = None
) -> None:
    """Each result is compared with the first one.

    Example: gpubalance compare before.json after.json --fail-slower 5%
    """
    if not others:
        raise UsageError(
            "compare needs a second result: there is nothing to compare "
            f"{clean(str(baseline))} with",
            remedy=f"gpubalance compare {shlex.quote(str(baseline))} RESULT.json",
        )
    from gpubalance.cli.output import Output, width
    from gpubalance.jobs.compare.compare import check_regression
    from gpubalance.jobs.compare.compare import compare as compare_job
    from gpubalance.render.compare import comparison_text

    output = Output(
        reporting, lambda result: comparison_text(result, width()), shows_progress=False
    )
    comparison = compare_job([baseline, *others])
    output.give(comparison)
    if gate.fail_slower is not None:
        check_regression(comparison, gate.fail_slower / 100)
