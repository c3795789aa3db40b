"""`--fail-slower`: whether a comparison is a regression."""

from __future__ import annotations

from collections.abc import Iterator

from gpubalance.errors import BadInput, Regression
from gpubalance.numbers.units import format_percent
from gpubalance.results.comparison import Against, ComparedResult, Comparison, ThroughputRatio

_OF_ANOTHER_MODEL = ("model", "the model's parameters")


def check_regression(comparison: Comparison, most: float) -> None:
    """Raises Regression if a result is significantly slower and lost more than the fraction `most` of its throughput.

    A gate that can't judge must not pass: raises BadInput if there is no verdict or the models differ.
    """
    found: list[str] = []
    first = comparison.results[0]
    for against in comparison.against_first:
        other = comparison.results[against.result]
        _check_same_work(first, other, against)
        for where, ratio in _ratios(first, other, against):
            if ratio.ci95 is None:
                raise _no_verdict(first, other, where)
            if ratio.verdict == "slower" and 1 - ratio.value > most:
                lost, low, high = (format_percent(1 - value, 1) for value in (ratio.value, *reversed(ratio.ci95)))
                unquiet = "; ".join(f"{one.file}: {one.not_quiet}" for one in (first, other) if one.not_quiet)
                doubt = f", but the machine was not quiet ({unquiet})" if unquiet else ""
                found.append(f"{other.file}{where} is {lost} ({low} to {high}) slower than {first.file}{doubt}")
    if found:
        raise Regression(
            f"{'; '.join(found)}: more than --fail-slower {100 * most:g}%",
            remedy="measure it once more before looking for a cause: no interval includes how much two runs of the "
            "same split differ",
        )


def _cannot(why: str, remedy: str) -> BadInput:
    return BadInput(f"{why}: --fail-slower can't judge", remedy=remedy)


def _check_same_work(first: ComparedResult, other: ComparedResult, against: Against) -> None:
    for one in against.unlike:
        if one.what in _OF_ANOTHER_MODEL:
            differs = f"{one.what} {one.other}, not {one.baseline}"
            remedy = "measure both with the same --model, or leave out --fail-slower"
            raise _cannot(f"{other.file} is not the same work as {first.file} ({differs})", remedy)
    if against.same_measurement:
        raise _cannot(f"{other.file} is the same measurement as {first.file}", "give the file of another run")


def _ratios(first: ComparedResult, other: ComparedResult, against: Against) -> Iterator[tuple[str, ThroughputRatio]]:
    """The ratios to judge, with where each is from: the split's throughput, or each device's alone."""
    if against.ratio is not None:
        yield "", against.ratio
        return
    for one in against.devices:
        if one.baseline is None or one.other is None or one.ratio is None:
            device = other.devices[one.other or 0] if one.baseline is None else first.devices[one.baseline]
            raise _cannot(
                f"{first.file} and {other.file} have no batch size of {device.label} in common",
                "probe the same devices with the same --batch-multiple",
            )
        yield f" on {other.devices[one.other].label}", one.ratio


def _no_verdict(first: ComparedResult, other: ComparedResult, where: str) -> BadInput:
    for one in (first, other):
        if one.kind == "prediction":
            return BadInput(
                f"{one.file} was never run: its figures are predicted, and --fail-slower judges what is measured",
                remedy="gpubalance run --plan PLAN.json -o RUN.json measures it",
            )
    few = f"{other.file}{where}: too few timings in it or in {first.file} for an interval"
    return _cannot(few, "measure longer: --windows, --duration")
