"""`compare`: each result against the first, the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpubalance.errors import BadInput
from gpubalance.jobs.compare.contender import Contender, read_contender
from gpubalance.jobs.compare.unlike import pair_devices, unlike
from gpubalance.numbers.ratio import Ratio, mean_ratio, ratio, ratio_of_sums
from gpubalance.results.common import now
from gpubalance.results.comparison import (
    Against,
    Comparison,
    DeviceRatio,
    PointRatio,
    ThroughputRatio,
)

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

    Raises BadInput for a file that is not a result, and for a probe beside a result of another
    kind.
    """
    contenders = [read_contender(path) for path in paths]
    first = contenders[0]
    against_first = []
    for number, other in enumerate(contenders[1:], 1):
        against_first.append(_against(first, other, number))
    return Comparison(
        created=now(),
        results=tuple(contender.result for contender in contenders),
        against_first=tuple(against_first),
    )


def _against(first: Contender, other: Contender, number: int) -> Against:
    kinds = (first.result.kind, other.result.kind)
    if "probe" in kinds and kinds[0] != kinds[1]:
        baseline = f"{first.result.file} is {_KINDS[kinds[0]]}"
        raise BadInput(
            f"{baseline}, {other.result.file} is {_KINDS[kinds[1]]}: devices measured alone can't "
            "be compared with a split of them",
            remedy="compare runs and plans with each other, and probes with probes",
        )
    same = first.source == other.source
    devices = []
    for mine, theirs in pair_devices(first.devices, other.devices):
        devices.append(_device(first, other, mine, theirs, same=same))
    return Against(
        result=number,
        same_measurement=same,
        unlike=unlike(first, other),
        ratio=_ratio(first, other, same=same),
        devices=tuple(devices),
    )


def _ratio(first: Contender, other: Contender, *, same: bool) -> ThroughputRatio | None:
    """That of the whole splits' throughput; None for probes."""
    before = first.result.throughput
    after = other.result.throughput
    if before is None or after is None:
        return None
    if same:
        return _record(_SAME)
    return _record(
        ratio_of_sums(after.median / before.median, other.parts, first.parts)
    )


def _device(
    first: Contender,
    other: Contender,
    mine: int | None,
    theirs: int | None,
    *,
    same: bool,
) -> DeviceRatio:
    if mine is None or theirs is None:
        return DeviceRatio(baseline=mine, other=theirs)
    before = first.alone[mine]
    after = other.alone[theirs]
    parts = []
    points = []
    for batch in sorted(before.keys() & after.keys()):
        before_rate, before_s = before[batch]
        after_rate, after_s = after[batch]
        part = (after_rate / before_rate, after_s, before_s)
        parts.append(part)
        if first.result.kind == "probe":
            at_batch = _record(ratio(*part))
            points.append(
                PointRatio(
                    batch=batch, baseline=before_rate, other=after_rate, ratio=at_batch
                )
            )
    whole = None
    if same:
        whole = _record(_SAME)
    elif parts:
        whole = _record(mean_ratio(parts))
    return DeviceRatio(baseline=mine, other=theirs, ratio=whole, points=tuple(points))


def _record(computed: Ratio) -> ThroughputRatio:
    return ThroughputRatio(
        value=computed.value,
        ci95=computed.ci95,
        detectable=computed.detectable,
        verdict=computed.verdict,
    )
