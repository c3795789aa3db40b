"""`compare --fail-slower`: whether a result is a regression."""

from __future__ import annotations

from collections.abc import Iterator

from gpubalance.errors import BadInput, Regression
from gpubalance.numbers.units import format_percent
from gpubalance.results.comparison import (
    Against,
    ComparedResult,
    Comparison,
    ThroughputRatio,
)

_OF_ANOTHER_MODEL = ("model", "the model's parameters")


def check_regression(comparison: Comparison, maximum: float) -> None:
    """Raises Regression if a result is significantly slower.

    It must have lost more than the fraction `maximum` of its throughput. A gate that can't judge
    must not pass: raises BadInput if there is no verdict or the models differ.
    """
    first = comparison.results[0]
    slower = []
    for against in comparison.against_first:
        other = comparison.results[against.result]
        for where, ratio in _ratios(first, other, against):
            if ratio.ci95 is None:
                few = (
                    f"too few timings in this result or in {first.file} for an interval"
                )
                raise _cannot(
                    f"{other.file}{where}: {few}",
                    "measure longer: --windows, --duration",
                )
            if ratio.verdict == "slower" and 1 - ratio.value > maximum:
                lost = format_percent(1 - ratio.value, 1)
                low = format_percent(1 - ratio.ci95[1], 1)
                high = format_percent(1 - ratio.ci95[0], 1)
                slower.append(
                    f"{other.file}{where} is {lost} ({low} to {high}) slower than "
                    f"{first.file}{_doubt(first, other)}"
                )
    if slower:
        raise Regression(
            f"{'; '.join(slower)}: more than --fail-slower {100 * maximum:g}%",
            remedy="measure again before you look for a cause: two runs of the same "
            "split also differ, and the interval covers only the variation within a "
            "run",
        )


def _doubt(first: ComparedResult, other: ComparedResult) -> str:
    """What makes a verdict doubtful, as the end of its sentence; empty if nothing."""
    unquiet = [
        f"{each.file}: {each.not_quiet}" for each in (first, other) if each.not_quiet
    ]
    return f", but the machine was not quiet ({'; '.join(unquiet)})" if unquiet else ""


def _ratios(
    first: ComparedResult, other: ComparedResult, against: Against
) -> Iterator[tuple[str, ThroughputRatio]]:
    """The ratios to judge, with where each is from: the split's throughput, or each device's alone.

    Raises BadInput if the two were not the same work, measured twice.
    """
    _check_same_work(first, other, against)
    if against.ratio is not None:
        yield "", against.ratio
        return
    for pair in against.devices:
        if pair.other is None or pair.baseline is None or pair.ratio is None:
            if pair.baseline is not None:
                label = first.devices[pair.baseline].label
            else:
                label = other.devices[pair.other or 0].label
            raise _cannot(
                f"{first.file} and {other.file} have no batch size of {label} in common",
                "probe the same devices with the same --batch-multiple",
            )
        yield f" on {other.devices[pair.other].label}", pair.ratio


def _check_same_work(
    first: ComparedResult, other: ComparedResult, against: Against
) -> None:
    for result in (first, other):
        if result.kind == "prediction":
            raise _cannot(
                f"{result.file} was never run: its figures are predictions",
                "measure it: gpubalance run --plan PLAN.json -o RUN.json",
            )
    for difference in against.unlike:
        if difference.what in _OF_ANOTHER_MODEL:
            how = f"{difference.what} {difference.other}, not {difference.baseline}"
            raise _cannot(
                f"{other.file} did not do the same work as {first.file} ({how})",
                "measure both with the same --model, or leave out --fail-slower",
            )
    if against.same_measurement:
        raise _cannot(
            f"{other.file} is the same measurement as {first.file}",
            "give the file of another run",
        )


def _cannot(why: str, remedy: str) -> BadInput:
    return BadInput(f"{why}: --fail-slower cannot decide", remedy=remedy)
