"""`compare`: each result against the first, the baseline, and which of them is a regression."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gpubalance.errors import BadInput, Regression
from gpubalance.jobs.compare.contender import Contender, read_contender
from gpubalance.numbers.stats import Ratio, mean_ratio, ratio, ratio_of_sums
from gpubalance.numbers.units import format_percent
from gpubalance.results.common import now, shapes_text
from gpubalance.results.comparison import (
    Against,
    ComparedResult,
    Comparison,
    DeviceRatio,
    Difference,
    PointRatio,
    ThroughputRatio,
)
from gpubalance.results.independent import Independent
from gpubalance.results.layers import Layers
from gpubalance.results.probe import Probe
from gpubalance.results.records import AnyResult
from gpubalance.results.run import Run
from gpubalance.settings.device import Device
from gpubalance.settings.measuring import margin_text
from gpubalance.text import clean

_UUID_SHOWN = 12
Facts = Mapping[str, object]
Places = tuple[int | None, int | None]
_SAME = Ratio(1.0, None, None)
_KINDS = {
    "run": "a run",
    "probe": "a probe",
    "prediction": "a plan that was never run",
    "independent": "models on several devices at once",
    "layers": "a model cut over devices",
}


def pair_devices(baseline: Sequence[Device], other: Sequence[Device]) -> list[Places]:
    """The places of each device in both results; None where a result lacks it.

    They are matched by UUID or else by label. A UUID that is shared by several devices does not
    count.
    """
    matched: dict[int, int] = {}
    for name in ("uuid", "label"):
        here = _places(baseline, name)
        there = _places(other, name)
        for value in here.keys() & there.keys():
            if here[value] not in matched and there[value] not in matched.values():
                matched[here[value]] = there[value]
    pairs: list[Places] = []
    for place in range(len(baseline)):
        pairs.append((place, matched.get(place)))
    for place in range(len(other)):
        if place not in matched.values():
            pairs.append((None, place))
    return pairs


def _places(devices: Sequence[Device], name: str) -> dict[str, int]:
    values = [getattr(device, name) for device in devices]
    return {
        value: place for place, value in enumerate(values) if values.count(value) == 1
    }


def differences(baseline: Contender, other: Contender) -> tuple[Difference, ...]:
    """The differences in settings, model, devices, software and machine, in this order.

    A None in one is unknown.
    """
    return (
        *_differences(_settings(baseline.source), _settings(other.source)),
        *_devices(baseline.devices, other.devices),
        *_differences(_software(baseline.source), _software(other.source)),
    )


def _settings(source: AnyResult) -> Facts:
    """What was measured, and how, by the name that a reader knows.

    Without what is not known or does not matter.
    """
    facts: dict[str, object] = {}
    for name, value in source.settings:
        facts[name.replace("_", "-")] = value
    if source.model is not None:
        facts["the model's parameters"] = source.model.parameters
        facts["the model's gradient bytes"] = source.model.gradient_bytes
        if source.model.input_shapes is not None:
            facts["the model's input shapes"] = shapes_text(source.model.input_shapes)
    if isinstance(source, Probe):
        facts["--parallel"] = source.parallel
        facts["--margin"] = margin_text(source.margin_bytes)
        facts["--batch-multiple"] = source.batch_multiple
        facts["--max-batch"] = source.max_batch
    kinds = {
        Layers: "one model cut over all",
        Independent: "a model of its own on each device",
    }
    facts["training"] = kinds.get(type(source), "one model on all")
    if source.settings.data is not None:
        is_piped = isinstance(source, Run) and source.pipeline is not None
        if is_piped or isinstance(source, Independent):
            facts["samples"] = "from the pipeline"
        else:
            facts["samples"] = "held on the devices"
    return facts


def _software(source: AnyResult) -> Facts:
    return {name.replace("_", " "): value for name, value in source.environment or ()}


def _differences(before: Facts, after: Facts) -> Iterator[Difference]:
    """The facts that both have and that are not equal."""
    for name, value in before.items():
        if name in after and value != after[name]:
            yield Difference(what=name, baseline=_text(value), other=_text(after[name]))


def _devices(
    baseline: Sequence[Device], other: Sequence[Device]
) -> Iterator[Difference]:
    for mine, theirs in pair_devices(baseline, other):
        before = after = None
        if mine is not None:
            before = baseline[mine]
        if theirs is not None:
            after = other[theirs]
        if before and after and before.uuid == after.uuid:
            label = before.label
            yield from _differences(_of_device(before, label), _of_device(after, label))
        else:
            label = (before or after or other[0]).label
            yield Difference(what=label, baseline=_name(before), other=_name(after))


def _name(device: Device | None) -> str:
    if device is None:
        return "not in use"
    return clean(f"{device.name} ({clean(device.uuid, _UUID_SHOWN + 1)})")


def _of_device(device: Device, label: str) -> Facts:
    """What may change in one device: a flashed card and an edited profile keep their UUID."""
    facts: dict[str, object] = {"name": device.name, "memory": device.memory_bytes}
    facts["has a profile"] = device.profile is not None
    if device.profile is not None:
        facts |= device.profile.model_dump(exclude={"name", "memory"})
    return {f"{label} {name}": value for name, value in facts.items()}


def _text(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return clean(str(value))


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
            f"{baseline}, {other.result.file} is {_KINDS[kinds[1]]}: figures of "
            "devices alone cannot be compared with a split over them",
            remedy="compare runs and plans with each other, and probes with probes",
        )
    same = first.source == other.source
    devices = []
    for mine, theirs in pair_devices(first.devices, other.devices):
        devices.append(_device(first, other, mine, theirs, same=same))
    return Against(
        result=number,
        same_measurement=same,
        unlike=differences(first, other),
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
        for where, judged in _ratios(first, other, against):
            if judged.ci95 is None:
                few = (
                    f"too few timings in this result or in {first.file} for an interval"
                )
                raise _cannot(
                    f"{other.file}{where}: {few}",
                    "measure longer: --windows, --duration",
                )
            if judged.verdict == "slower" and 1 - judged.value > maximum:
                lost = format_percent(1 - judged.value, 1)
                low = format_percent(1 - judged.ci95[1], 1)
                high = format_percent(1 - judged.ci95[0], 1)
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
