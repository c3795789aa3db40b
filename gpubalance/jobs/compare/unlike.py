"""What differs between two results besides the split, so that they do not compare like with like."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpubalance.jobs.compare.subject import Subject
from gpubalance.results.common import Environment, shapes_text
from gpubalance.results.comparison import Unlike
from gpubalance.results.independent import Independent
from gpubalance.results.layers import Layers
from gpubalance.results.probe import Probe
from gpubalance.results.run import Run
from gpubalance.settings.device import Device
from gpubalance.text import clean

_UUID_SHOWN = 12


def pair_devices(baseline: Sequence[Device], other: Sequence[Device]) -> list[tuple[int | None, int | None]]:
    """The places of each device in both results, matched by UUID or else by label; None where a result lacks it.

    A UUID that is shared by several devices does not count.
    """
    pairs = dict[int, int]()
    for names in (_uuids, _labels):
        here, there = names(baseline), names(other)
        for name in here.keys() & there.keys():
            if here[name] not in pairs and there[name] not in pairs.values():
                pairs[here[name]] = there[name]
    left = set(range(len(other))) - set(pairs.values())
    return [*((place, pairs.get(place)) for place in range(len(baseline))), *((None, place) for place in sorted(left))]


def _labels(devices: Sequence[Device]) -> dict[str, int]:
    return {device.label: place for place, device in enumerate(devices)}


def _uuids(devices: Sequence[Device]) -> dict[str, int]:
    all_of_them = [device.uuid for device in devices]
    return {uuid: place for place, uuid in enumerate(all_of_them) if all_of_them.count(uuid) == 1}


def unlike(baseline: Subject, other: Subject) -> tuple[Unlike, ...]:
    """The differences in settings, model, devices, software and machine, in this order; a None in one is unknown."""
    software = [subject.source.environment for subject in (baseline, other)]
    return (
        *_differences(_facts(baseline), _facts(other)),
        *_devices(baseline.devices, other.devices),
        *_differences(*(_software(one, each=None not in software) for one in software)),
    )


def _facts(subject: Subject) -> dict[str, object]:
    """What was measured, and how, by the name to tell it under; without what is not known or is no matter."""
    source = subject.source
    facts: dict[str, object] = {name.replace("_", "-"): value for name, value in source.settings}
    if source.model is not None:
        facts["the model's parameters"] = source.model.parameters
        facts["the model's gradient bytes"] = source.model.gradient_bytes
        if source.model.input_shapes is not None:
            facts["the model's input shapes"] = shapes_text(source.model.input_shapes)
    if isinstance(source, Probe):
        facts |= {"--parallel": source.parallel, "--margin": source.margin_bytes}
        facts |= {"--batch-multiple": source.batch_multiple, "--max-batch": source.max_batch}
    kinds = {Layers: "one model cut over all", Independent: "a model of its own on each device"}
    facts["training"] = kinds.get(type(source), "one model on all")
    if source.settings.data is not None:
        is_piped = isinstance(source, Independent) or (isinstance(source, Run) and source.pipeline is not None)
        facts["samples"] = "from the pipeline" if is_piped else "held on the devices"
    return facts


def _software(known: Environment | None, *, each: bool) -> dict[str, object]:
    if each and known is not None:
        return {name.replace("_", " "): value for name, value in known}
    return {"software": known and f"gpubalance {known.gpubalance}, tensorflow {known.tensorflow}"}


def _differences(before: dict[str, object], after: dict[str, object]) -> Iterator[Unlike]:
    """The facts that both have and that are not equal."""
    for name in before:
        if name in after and before[name] != after[name]:
            yield Unlike(what=name, baseline=_text(before[name]), other=_text(after[name]))


def _devices(baseline: Sequence[Device], other: Sequence[Device]) -> Iterator[Unlike]:
    for mine, theirs in pair_devices(baseline, other):
        before = None if mine is None else baseline[mine]
        after = None if theirs is None else other[theirs]
        if before is None or after is None:
            yield Unlike(what=(before or after or other[0]).label, baseline=_named(before), other=_named(after))
            continue
        if before.uuid != after.uuid:
            yield Unlike(what=before.label, baseline=_named(before), other=_named(after))
            continue
        simulated = before.profile is not None and after.profile is not None
        facts = (_of_device(device, before.label, simulated=simulated) for device in (before, after))
        yield from _differences(*facts)


def _named(device: Device | None) -> str:
    if device is None:
        return "not in use"
    uuid = device.uuid if len(device.uuid) <= _UUID_SHOWN else f"{device.uuid[:_UUID_SHOWN]}…"
    return clean(f"{device.name} ({uuid})")


def _of_device(device: Device, label: str, *, simulated: bool) -> dict[str, object]:
    """What may change in one device: a flashed card and an edited profile keep their UUID."""
    facts: dict[str, object] = {"memory": device.memory_bytes, "has a profile": device.profile is not None}
    if simulated and device.profile is not None:
        facts = device.profile.model_dump(exclude={"name"})
    return {f"{label} {name}": value for name, value in {"name": device.name, **facts}.items()}


def _text(value: object) -> str | None:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return None if value is None else f"{value:g}" if isinstance(value, float) else clean(str(value))
