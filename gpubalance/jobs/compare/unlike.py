"""What differs between two results besides the split, so that they do not compare like with like."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpubalance.jobs.compare.subject import Subject
from gpubalance.results.common import Environment, Model, shapes_text
from gpubalance.results.comparison import Unlike
from gpubalance.results.independent import Independent
from gpubalance.results.layers import Layers
from gpubalance.results.probe import Probe
from gpubalance.results.redact import is_redacted
from gpubalance.results.run import Run
from gpubalance.settings.device import Device, DeviceProfile
from gpubalance.settings.record import Record
from gpubalance.settings.requests import Settings
from gpubalance.text import clean

_UUID_SHOWN = 12
# The same name may be another model by now.
_OF_A_MODEL = {"parameters": "the model's parameters", "gradient_bytes": "the model's gradient bytes"}
_OF_A_PROBE = {
    "parallel": "--parallel",
    "margin_bytes": "--margin",
    "batch_multiple": "--batch-multiple",
    "max_batch": "--max-batch",
}


def pair_devices(baseline: Sequence[Device], other: Sequence[Device]) -> list[tuple[int | None, int | None]]:
    """The places of each device in both results, matched by UUID or else by label; None where a result lacks it.

    A UUID that is redacted or shared by several devices does not count.
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
    return {
        uuid: place for place, uuid in enumerate(all_of_them) if all_of_them.count(uuid) == 1 and not is_redacted(uuid)
    }


def unlike(baseline: Subject, other: Subject) -> tuple[Unlike, ...]:
    """The differences in settings, model, devices, software and machine, in this order; a None in one is unknown."""
    before, after = baseline.source, other.source
    return (
        *_fields(before.settings, after.settings, {name: name.replace("_", "-") for name in Settings.model_fields}),
        *_fields(before.model, after.model, _OF_A_MODEL),
        *_input_shapes(before.model, after.model),
        *(_fields(before, after, _OF_A_PROBE) if isinstance(before, Probe) and isinstance(after, Probe) else ()),
        *_if_unlike("training", *(_training(subject) for subject in (baseline, other))),
        *_samples(baseline, other),
        *_devices(baseline.devices, other.devices),
        *_environment(before.environment, after.environment),
    )


def _training(subject: Subject) -> str:
    if isinstance(subject.source, Layers):
        return "one model cut over all"
    return "a model of its own on each device" if isinstance(subject.source, Independent) else "one model on all"


def _samples(baseline: Subject, other: Subject) -> Iterator[Unlike]:
    """Whether the user's samples came from the pipeline in one and lay on the devices in the other."""
    sources = baseline.source, other.source
    if all(source.settings.data is not None for source in sources):
        piped = [isinstance(one, Independent) or (isinstance(one, Run) and one.pipeline is not None) for one in sources]
        yield from _if_unlike("samples", *("from the pipeline" if one else "held on the devices" for one in piped))


def _fields(before: Record | None, after: Record | None, names: Mapping[str, str]) -> Iterator[Unlike]:
    """The fields that differ, each under the name given for it; nothing if a record is unknown."""
    if before is not None and after is not None:
        mine, theirs = before.model_dump(include=set(names)), after.model_dump(include=set(names))
        for field, name in names.items():
            yield from _if_unlike(name, mine[field], theirs[field])


def _input_shapes(before: Model | None, after: Model | None) -> Iterator[Unlike]:
    """The difference in input shapes, where both are known."""
    mine, theirs = (model.input_shapes if model else None for model in (before, after))
    if mine is not None and theirs is not None:
        yield from _if_unlike("the model's input shapes", shapes_text(mine), shapes_text(theirs))


def _devices(baseline: Sequence[Device], other: Sequence[Device]) -> Iterator[Unlike]:
    for mine, theirs in pair_devices(baseline, other):
        before = None if mine is None else baseline[mine]
        after = None if theirs is None else other[theirs]
        if before is None or after is None:
            yield Unlike(what=(before or after or other[0]).label, baseline=_named(before), other=_named(after))
            continue
        uuids = [None if is_redacted(device.uuid) else device.uuid for device in (before, after)]
        if None in uuids:  # it may or may not be the same device
            yield Unlike(what=f"{before.label} UUID", baseline=uuids[0], other=uuids[1])
        if None not in uuids and before.uuid != after.uuid:
            yield Unlike(what=before.label, baseline=_named(before), other=_named(after))
        else:
            yield from _same_device(before, after)


def _named(device: Device | None) -> str:
    if device is None:
        return "not in use"
    uuid = device.uuid if len(device.uuid) <= _UUID_SHOWN else f"{device.uuid[:_UUID_SHOWN]}…"
    return clean(f"{device.name} ({uuid})")


def _same_device(baseline: Device, other: Device) -> Iterator[Unlike]:
    """What changed in one device: a flashed card and an edited profile keep their UUID."""
    label = baseline.label
    yield from _if_unlike(f"{label} name", baseline.name, other.name)
    if baseline.profile is None or other.profile is None:
        yield from _if_unlike(f"{label} memory", baseline.memory_bytes, other.memory_bytes)
        yield from _if_unlike(f"{label} has a profile", baseline.profile is not None, other.profile is not None)
        return
    shown = {name: f"{label} {name}" for name in DeviceProfile.model_fields if name != "name"}
    yield from _fields(baseline.profile, other.profile, shown)


def _environment(before: Environment | None, after: Environment | None) -> Iterator[Unlike]:
    if before is None or after is None:
        yield from _if_unlike("software", before and _software(before), after and _software(after))
    yield from _fields(before, after, {name: name.replace("_", " ") for name in Environment.model_fields})


def _software(known: Environment) -> str:
    return f"gpubalance {known.gpubalance}, tensorflow {known.tensorflow}"


def _if_unlike(what: str, baseline: object, other: object) -> Iterator[Unlike]:
    if baseline != other:
        yield Unlike(what=what, baseline=_text(baseline), other=_text(other))


def _text(value: object) -> str | None:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return None if value is None else f"{value:g}" if isinstance(value, float) else clean(str(value))
