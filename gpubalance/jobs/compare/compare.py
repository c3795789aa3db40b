"""`compare`: each result against the first, and with `--fail-slower` whether that is a
regression.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from gpubalance.errors import BadInput, Regression
from gpubalance.jobs.compare.subject import Contender, read_subject
from gpubalance.jobs.compare.unlike import pair_devices, unlike
from gpubalance.numbers.ratio import Ratio, mean_ratio, ratio, ratio_of_sums
from gpubalance.numbers.units import format_percent
from gpubalance.results.common import now
from gpubalance.results.comparison import (
    Against,
    ComparedResult,
    Comparison,
    DeviceRatio,
    PointRatio,
    ThroughputRatio,
)

_SAME = Ratio(1.0, None, None)
_OF_ANOTHER_MODEL = ("model", "the model's parameters")
_KINDS = {
    "run": "a run",
    "probe": "a probe",
    "prediction": "a plan that was never run",
    "independent": "models on devices at once",
    "layers": "a model cut over devices",
}


def compare(paths: Sequence[Path]) -> Comparison:
    """Compares each of these files, two or more, with the first.

    Raises BadInput for a file that is not a result, and for a probe beside a result of another
    kind.
    """
    first, *others = subjects = [read_subject(path) for path in paths]
    return Comparison(
        created=now(),
        results=tuple(subject.result for subject in subjects),
        against_first=tuple(
            _against(first, other, number) for number, other in enumerate(others, 1)
        ),
    )


def _against(first: Contender, other: Contender, number: int) -> Against:
    kinds = first.result.kind, other.result.kind
    if "probe" in kinds and kinds[0] != kinds[1]:
        which = (
            f"{first.result.file} is {_KINDS[kinds[0]]}, {other.result.file} is {_KINDS[kinds[1]]}"
        )
        raise BadInput(
            f"{which}: devices measured alone can't be compared with a split of them",
            remedy="compare runs and plans with each other, and probes with probes",
        )
    same, before, after = (
        first.source == other.source,
        first.result.throughput,
        other.result.throughput,
    )
    pairs, found = pair_devices(first.devices, other.devices), None
    if before is not None and after is not None:
        found = (
            _SAME if same else ratio_of_sums(after.median / before.median, other.parts, first.parts)
        )
    return Against(
        result=number,
        same_measurement=same,
        unlike=unlike(first, other),
        ratio=_record(found) if found else None,
        devices=tuple(_device(first, other, *pair, same=same) for pair in pairs),
    )


def _device(
    first: Contender, other: Contender, mine: int | None, theirs: int | None, *, same: bool
) -> DeviceRatio:
    if mine is None or theirs is None:
        return DeviceRatio(baseline=mine, other=theirs)
    before, after = first.alone[mine], other.alone[theirs]
    both = sorted(before.keys() & after.keys())
    parts = [(after[key][0] / before[key][0], after[key][1], before[key][1]) for key in both]
    points = tuple(
        PointRatio(
            batch=batch,
            baseline=before[batch][0],
            other=after[batch][0],
            ratio=_record(ratio(*part)),
        )
        for batch, part in zip(both, parts, strict=True)
        if first.result.kind == "probe"
    )
    found = _SAME if same else mean_ratio(parts) if parts else None
    return DeviceRatio(
        baseline=mine, other=theirs, ratio=_record(found) if found else None, points=points
    )


def _record(found: Ratio) -> ThroughputRatio:
    return ThroughputRatio(
        value=found.value, ci95=found.ci95, detectable=found.detectable, verdict=found.verdict
    )


def check_regression(comparison: Comparison, most: float) -> None:
    """Raises Regression if a result is significantly slower and lost more than the fraction `most`
    of its throughput.

    A gate that can't judge must not pass: raises BadInput if there is no verdict or the models
    differ.
    """
    found, first = list[str](), comparison.results[0]
    for against in comparison.against_first:
        other = comparison.results[against.result]
        for where, one in _ratios(first, other, against):
            if one.ci95 is None:
                few = (
                    f"{other.file}{where}: too few timings in it or in {first.file} for an interval"
                )
                raise _cannot(few, "measure longer: --windows, --duration")
            if one.verdict == "slower" and 1 - one.value > most:
                lost, low, high = (
                    format_percent(1 - value, 1) for value in (one.value, *reversed(one.ci95))
                )
                unquiet = "; ".join(
                    f"{each.file}: {each.not_quiet}" for each in (first, other) if each.not_quiet
                )
                doubt = f", but the machine was not quiet ({unquiet})" if unquiet else ""
                found.append(
                    f"{other.file}{where} is {lost} ({low} to {high}) slower than "
                    f"{first.file}{doubt}"
                )
    if found:
        raise Regression(
            f"{'; '.join(found)}: more than --fail-slower {100 * most:g}%",
            remedy="measure it once more before looking for a cause: no interval includes how much "
            "two runs of the "
            "same split differ",
        )


def _ratios(
    first: ComparedResult, other: ComparedResult, against: Against
) -> Iterator[tuple[str, ThroughputRatio]]:
    """The ratios to judge, with where each is from: the split's throughput, or each device's alone.

    Raises BadInput if the two were not the same work, measured twice.
    """
    for one in (first, other):
        if one.kind == "prediction":
            run = "gpubalance run --plan PLAN.json -o RUN.json measures it"
            raise _cannot(f"{one.file} was never run, its figures are predicted", run)
    for differs in against.unlike:
        if differs.what in _OF_ANOTHER_MODEL:
            how = f"{differs.what} {differs.other}, not {differs.baseline}"
            remedy = "measure both with the same --model, or leave out --fail-slower"
            raise _cannot(f"{other.file} is not the same work as {first.file} ({how})", remedy)
    if against.same_measurement:
        raise _cannot(
            f"{other.file} is the same measurement as {first.file}", "give the file of another run"
        )
    if against.ratio is not None:
        yield "", against.ratio
        return
    for pair in against.devices:
        if pair.baseline is None or pair.other is None or pair.ratio is None:
            device = (
                other.devices[pair.other or 0]
                if pair.baseline is None
                else first.devices[pair.baseline]
            )
            raise _cannot(
                f"{first.file} and {other.file} have no batch size of {device.label} in common",
                "probe the same devices with the same --batch-multiple",
            )
        yield f" on {other.devices[pair.other].label}", pair.ratio


def _cannot(why: str, remedy: str) -> BadInput:
    return BadInput(f"{why}: --fail-slower can't judge", remedy=remedy)
