"""What differs between two results besides the split, so that they are not like for like."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpubalance.jobs.compare.contender import Contender
from gpubalance.results.common import shapes_text
from gpubalance.results.comparison import Unlike
from gpubalance.results.independent import Independent
from gpubalance.results.layers import Layers
from gpubalance.results.probe import Probe
from gpubalance.results.records import AnyResult
from gpubalance.results.run import Run
from gpubalance.settings.device import Device
from gpubalance.text import clean

_UUID_SHOWN = 12
Facts = Mapping[str, object]
Places = tuple[int | None, int | None]


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


def unlike(baseline: Contender, other: Contender) -> tuple[Unlike, ...]:
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
        facts["--margin"] = source.margin_bytes
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


def _differences(before: Facts, after: Facts) -> Iterator[Unlike]:
    """The facts that both have and that are not equal."""
    for name, value in before.items():
        if name in after and value != after[name]:
            yield Unlike(what=name, baseline=_text(value), other=_text(after[name]))


def _devices(baseline: Sequence[Device], other: Sequence[Device]) -> Iterator[Unlike]:
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
            yield Unlike(what=label, baseline=_name(before), other=_name(after))


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
