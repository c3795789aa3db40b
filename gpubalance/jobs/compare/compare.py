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

_SAME = Ratio(1.0, None, None)
_KINDS = {
    "run": "a run",
    "probe": "a probe",
    "prediction": "a plan that was never run",
    "independent": "models on devices at once",
    "layers": "a model cut over devices",
}


def compare(paths: Sequence[Path]) -> Comparison:
    """Compares each of these files, two or more, with the first.

    Raises BadInput for a file that is not a result, and for a probe beside a result of another kind.
    """
    first, *others = subjects = [read_subject(path) for path in paths]
    return Comparison(
        created=now(),
        results=tuple(subject.result for subject in subjects),
        against_first=tuple(_against(first, other, number) for number, other in enumerate(others, 1)),
    )


def _against(first: Subject, other: Subject, number: int) -> Against:
    kinds = first.result.kind, other.result.kind
    if "probe" in kinds and kinds[0] != kinds[1]:
        which = f"{first.result.file} is {_KINDS[kinds[0]]}, {other.result.file} is {_KINDS[kinds[1]]}"
        raise BadInput(
            f"{which}: devices measured alone can't be compared with a split of them",
            remedy="compare runs and plans with each other, and probes with probes",
        )
    same, before, after = first.source == other.source, first.result.throughput, other.result.throughput
    pairs, found = pair_devices(first.devices, other.devices), None
    if before is not None and after is not None:
        found = _SAME if same else ratio_of_sums(after.median / before.median, other.parts, first.parts)
    return Against(
        result=number,
        same_measurement=same,
        unlike=unlike(first, other),
        ratio=_record(found) if found else None,
        devices=tuple(_device(first, other, *pair, same=same) for pair in pairs),
    )


def _device(first: Subject, other: Subject, mine: int | None, theirs: int | None, *, same: bool) -> DeviceRatio:
    if mine is None or theirs is None:
        return DeviceRatio(baseline=mine, other=theirs)
    before, after = first.timed(mine), other.timed(theirs)
    both = sorted(before.keys() & after.keys())
    parts = [(after[key][0] / before[key][0], after[key][1], before[key][1]) for key in both]
    points = tuple(
        PointRatio(batch=batch, baseline=before[batch][0], other=after[batch][0], ratio=_record(ratio(*part)))
        for batch, part in zip(both, parts, strict=True)
        if first.result.kind == "probe"
    )
    found = _SAME if same else mean_ratio(parts) if parts else None
    return DeviceRatio(baseline=mine, other=theirs, ratio=_record(found) if found else None, points=points)


def _record(found: Ratio) -> ThroughputRatio:
    return ThroughputRatio(value=found.value, ci95=found.ci95, detectable=found.detectable, verdict=found.verdict)
