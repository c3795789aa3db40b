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
    for against in comparison.against_first:
        baseline, other = comparison.results[0], comparison.results[against.result]
        for one in against.unlike:
            if one.what in _OF_ANOTHER_MODEL:
                raise BadInput(
                    f"{other.file} is not the same work as {baseline.file} ({one.what} {one.other}, not "
                    f"{one.baseline}): --fail-slower can't judge",
                    remedy="measure both with the same --model, or leave out --fail-slower",
                )
        if against.same_measurement:
            raise BadInput(
                f"{other.file} is the same measurement as {baseline.file}: --fail-slower can't judge",
                remedy="give the file of another run",
            )
        for where, ratio in _ratios(baseline, other, against):
            if ratio.ci95 is None:
                raise _no_verdict(baseline, other, where)
            if ratio.verdict == "slower" and 1 - ratio.value > most:
                lost, low, high = (format_percent(1 - value, 1) for value in (ratio.value, *reversed(ratio.ci95)))
                unquiet = [f"{one.file}: {one.not_quiet}" for one in (baseline, other) if one.not_quiet]
                doubt = f", but the machine was not quiet ({'; '.join(unquiet)})" if unquiet else ""
                found.append(f"{other.file}{where} is {lost} ({low} to {high}) slower than {baseline.file}{doubt}")
    if found:
        raise Regression(
            f"{'; '.join(found)}: more than --fail-slower {100 * most:g}%",
            remedy="measure it once more before looking for a cause: no interval includes how much two runs of the "
            "same split differ",
        )


def _ratios(baseline: ComparedResult, other: ComparedResult, against: Against) -> Iterator[tuple[str, ThroughputRatio]]:
    """The ratios to judge, with where each is from: the split's throughput, or each device's alone."""
    if against.ratio is not None:
        yield "", against.ratio
        return
    for one in against.devices:
        if one.baseline is None or one.other is None or one.ratio is None:
            device = other.devices[one.other or 0] if one.baseline is None else baseline.devices[one.baseline]
            raise BadInput(
                f"{baseline.file} and {other.file} have no batch size of {device.label} in common: --fail-slower "
                "can't judge",
                remedy="probe the same devices with the same --batch-multiple",
            )
        yield f" on {other.devices[one.other].label}", one.ratio


def _no_verdict(baseline: ComparedResult, other: ComparedResult, where: str) -> BadInput:
    predicted = [result for result in (baseline, other) if result.kind == "prediction"]
    if predicted:
        return BadInput(
            f"{predicted[0].file} was never run: its figures are predicted, and --fail-slower judges what is measured",
            remedy="gpubalance run --plan PLAN.json -o RUN.json measures it",
        )
    return BadInput(
        f"{other.file}{where}: too few timings in it or in {baseline.file} for an interval: --fail-slower can't judge",
        remedy="measure longer: --windows, --duration",
    )
