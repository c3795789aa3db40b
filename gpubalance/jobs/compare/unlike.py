"""What differs between two results besides the split, so that they do not compare like
with like.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpubalance.jobs.compare.subject import Contender
from gpubalance.results.common import shapes_text
from gpubalance.results.comparison import Unlike
from gpubalance.results.independent import Independent
from gpubalance.results.layers import Layers
from gpubalance.results.probe import Probe
from gpubalance.results.run import Run
from gpubalance.settings.device import Device
from gpubalance.text import clean

_UUID_SHOWN = 12
Facts = Mapping[str, object]


def pair_devices(
    baseline: Sequence[Device], other: Sequence[Device]
) -> list[tuple[int | None, int | None]]:
    """The places of each device in both results, matched by UUID or else by label; None where a
    result lacks it.

    A UUID that is shared by several devices does not count.
    """
    pairs = dict[int, int]()
    for name in ("uuid", "label"):
        here, there = _places(baseline, name), _places(other, name)
        for shared in here.keys() & there.keys():
            if here[shared] not in pairs and there[shared] not in pairs.values():
                pairs[here[shared]] = there[shared]
    left = [place for place in range(len(other)) if place not in pairs.values()]
    return [
        *((place, pairs.get(place)) for place in range(len(baseline))),
        *((None, place) for place in left),
    ]


def _places(devices: Sequence[Device], name: str) -> dict[str, int]:
    values = [getattr(device, name) for device in devices]
    return {value: place for place, value in enumerate(values) if values.count(value) == 1}


def unlike(baseline: Contender, other: Contender) -> tuple[Unlike, ...]:
    """The differences in settings, model, devices, software and machine, in this order; a None in
    one is unknown.
    """
    return (
        *_differences(_settings(baseline), _settings(other)),
        *_devices(baseline.devices, other.devices),
        *_differences(_software(baseline), _software(other)),
    )


def _settings(subject: Contender) -> Facts:
    """What was measured, and how, by the name to tell it under; without what is not known or is no
    matter.
    """
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
        is_piped = isinstance(source, Independent) or (
            isinstance(source, Run) and source.pipeline is not None
        )
        facts["samples"] = "from the pipeline" if is_piped else "held on the devices"
    return facts


def _software(subject: Contender) -> Facts:
    return {name.replace("_", " "): value for name, value in subject.source.environment or ()}


def _differences(before: Facts, after: Facts) -> Iterator[Unlike]:
    """The facts that both have and that are not equal."""
    for name, value in before.items():
        if name in after and value != after[name]:
            yield Unlike(what=name, baseline=_text(value), other=_text(after[name]))


def _devices(baseline: Sequence[Device], other: Sequence[Device]) -> Iterator[Unlike]:
    for mine, theirs in pair_devices(baseline, other):
        before = None if mine is None else baseline[mine]
        after = None if theirs is None else other[theirs]
        if before and after and before.uuid == after.uuid:
            yield from _differences(
                _of_device(before, before.label), _of_device(after, before.label)
            )
        else:
            yield Unlike(
                what=(before or after or other[0]).label,
                baseline=_named(before),
                other=_named(after),
            )


def _named(device: Device | None) -> str:
    return (
        clean(f"{device.name} ({clean(device.uuid, _UUID_SHOWN + 1)})") if device else "not in use"
    )


def _of_device(device: Device, label: str) -> Facts:
    """What may change in one device: a flashed card and an edited profile keep their UUID."""
    facts: dict[str, object] = {"name": device.name, "memory": device.memory_bytes}
    facts["has a profile"] = device.profile is not None
    if device.profile is not None:
        facts |= device.profile.model_dump(exclude={"name", "memory"})
    return {f"{label} {name}": value for name, value in facts.items()}


def _text(value: object) -> str | None:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (
        None if value is None else f"{value:g}" if isinstance(value, float) else clean(str(value))
    )
