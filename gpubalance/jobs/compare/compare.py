"""`compare`: each result against the first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpubalance.errors import BadInput
from gpubalance.jobs.compare.subject import Subject, read_subject
from gpubalance.jobs.compare.unlike import pair_devices, unlike
from gpubalance.numbers.ratio import Ratio, mean_ratio, ratio, ratio_of_sums
from gpubalance.results.common import now
from gpubalance.results.comparison import Against, Comparison, DeviceRatio, PointRatio, ThroughputRatio

_SAME = ThroughputRatio(value=1.0, ci95=None, detectable=None, verdict=None)


def compare(paths: Sequence[Path]) -> Comparison:
    """Compares each of these files, two or more, with the first.

    Raises BadInput for a file that is not a result, and for a probe beside a result of another kind.
    """
    subjects = [read_subject(path) for path in paths]
    baseline, *others = subjects
    return Comparison(
        created=now(),
        results=tuple(subject.result for subject in subjects),
        against_first=tuple(_against(baseline, other, number) for number, other in enumerate(others, 1)),
    )


def _against(baseline: Subject, other: Subject, number: int) -> Against:
    kinds = [subject.result.kind for subject in (baseline, other)]
    if "probe" in kinds and kinds[0] != kinds[1]:
        what = {
            "run": "a run",
            "probe": "a probe",
            "prediction": "a plan that was never run",
            "independent": "models on devices at once",
            "layers": "a model cut over devices",
        }
        raise BadInput(
            f"{baseline.result.file} is {what[kinds[0]]}, {other.result.file} is {what[kinds[1]]}: "
            "devices measured alone can't be compared with a split of them",
            remedy="compare runs and plans with each other, and probes with probes",
        )
    pairs = pair_devices(baseline.devices, other.devices)
    return Against(
        result=number,
        same_measurement=baseline.source == other.source,
        unlike=unlike(baseline, other),
        ratio=_ratio(baseline, other),
        devices=tuple(_device_ratio(baseline, other, *pair) for pair in pairs),
    )


def _ratio(baseline: Subject, other: Subject) -> ThroughputRatio | None:
    before, after = baseline.result.throughput, other.result.throughput
    if before is None or after is None:
        return None
    if baseline.source == other.source:
        return _SAME
    return _record(ratio_of_sums(after.median / before.median, other.parts, baseline.parts))


def _device_ratio(baseline: Subject, other: Subject, mine: int | None, theirs: int | None) -> DeviceRatio:
    if mine is None or theirs is None:
        return DeviceRatio(baseline=mine, other=theirs)
    before, after = baseline.curve(mine), other.curve(theirs)
    parts, points = [], []
    for batch in sorted(before.keys() & after.keys()):
        old, new = before[batch], after[batch]
        rates = (old.throughput.median, new.throughput.median)
        parts.append((rates[1] / rates[0], new.step_time_s.samples, old.step_time_s.samples))
        points.append(PointRatio(batch=batch, baseline=rates[0], other=rates[1], ratio=_record(ratio(*parts[-1]))))
    first, second = baseline.part(mine), other.part(theirs)
    if first and second:
        parts.append((second[0] / first[0], second[1], first[1]))
    return DeviceRatio(
        baseline=mine,
        other=theirs,
        ratio=_SAME if baseline.source == other.source else _record(mean_ratio(parts)) if parts else None,
        points=tuple(points),
    )


def _record(found: Ratio) -> ThroughputRatio:
    return ThroughputRatio(value=found.value, ci95=found.ci95, detectable=found.detectable, verdict=found.verdict)
