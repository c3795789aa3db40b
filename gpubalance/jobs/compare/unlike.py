"""What two results do not have in common beside the split: with that, a verdict is not like with like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from gpubalance.jobs.compare.subject import Subject
from gpubalance.results.common import Environment, Model
from gpubalance.results.comparison import Unlike
from gpubalance.results.probe import Probe
from gpubalance.results.redact import is_redacted
from gpubalance.settings.device import Device
from gpubalance.settings.requests import Settings
from gpubalance.text import clean

_UUID_SHOWN = 12
_PROBED = ("parallel", "margin_bytes", "batch_multiple", "max_batch")


def pair_devices(baseline: Sequence[Device], other: Sequence[Device]) -> list[tuple[int | None, int | None]]:
    """The same device in both, by UUID, else by label, as places in each; None where one has it not.

    A UUID that was taken out, or stands twice, names nothing.
    """
    pairs: list[tuple[int | None, int | None]] = []
    left = set(range(len(other)))
    labels = {device.label: place for place, device in enumerate(other)}
    here, there = _unique(baseline), _unique(other)
    by_uuid = [there.get(device.uuid) if device.uuid in here else None for device in baseline]
    left -= {place for place in by_uuid if place is not None}
    for number, device in enumerate(baseline):
        found = by_uuid[number]
        if found is None and labels.get(device.label) in left:
            found = labels[device.label]
            left.discard(found)
        pairs.append((number, found))
    return [*pairs, *((None, place) for place in sorted(left))]


def _unique(devices: Sequence[Device]) -> dict[str, int]:
    count = Counter(device.uuid for device in devices)
    return {
        device.uuid: place
        for place, device in enumerate(devices)
        if count[device.uuid] == 1 and not is_redacted(device.uuid)
    }


def unlike(baseline: Subject, other: Subject) -> tuple[Unlike, ...]:
    """Settings, model, devices, software and machine, in that order; null is not known."""
    return (
        *_settings(baseline.settings, other.settings),
        *_model(baseline.model, other.model),
        *_probing(baseline, other),
        *_devices(baseline.devices, other.devices),
        *_environment(baseline, other),
    )


def _settings(baseline: Settings, other: Settings) -> Iterator[Unlike]:
    for name in Settings.model_fields:
        yield from _if_unlike(name.replace("_", "-"), getattr(baseline, name), getattr(other, name))


def _model(baseline: Model | None, other: Model | None) -> Iterator[Unlike]:
    """The same name may be another model by now."""
    if baseline is not None and other is not None:
        for name in ("parameters", "gradient_bytes"):
            yield from _if_unlike(
                f"the model's {name.replace('_', ' ')}", getattr(baseline, name), getattr(other, name)
            )


def _probing(baseline: Subject, other: Subject) -> Iterator[Unlike]:
    if isinstance(baseline.source, Probe) and isinstance(other.source, Probe):
        for name in _PROBED:
            option = f"--{name.removesuffix('_bytes').replace('_', '-')}"
            yield from _if_unlike(option, getattr(baseline.source, name), getattr(other.source, name))


def _devices(baseline: Sequence[Device], other: Sequence[Device]) -> Iterator[Unlike]:
    for mine, theirs in pair_devices(baseline, other):
        before = None if mine is None else baseline[mine]
        after = None if theirs is None else other[theirs]
        if before is None or after is None:
            yield Unlike(what=(before or after or other[0]).label, baseline=_named(before), other=_named(after))
            continue
        redacted = [is_redacted(device.uuid) for device in (before, after)]
        if any(redacted):  # it may be the same device, or not
            uuids = [None if hidden else d.uuid for hidden, d in zip(redacted, (before, after), strict=True)]
            yield Unlike(what=f"{before.label} UUID", baseline=uuids[0], other=uuids[1])
        elif before.uuid != after.uuid:
            yield Unlike(what=before.label, baseline=_named(before), other=_named(after))
            continue
        yield from _same_device(before, after)


def _named(device: Device | None) -> str:
    if device is None:
        return "not in use"
    uuid = device.uuid if len(device.uuid) <= _UUID_SHOWN else f"{device.uuid[:_UUID_SHOWN]}…"
    return clean(f"{device.name} ({uuid})")


def _same_device(baseline: Device, other: Device) -> Iterator[Unlike]:
    """A card that was flashed or a profile that was edited keeps its UUID."""
    label = baseline.label
    yield from _if_unlike(f"{label} name", baseline.name, other.name)
    if baseline.profile is None or other.profile is None:
        yield from _if_unlike(f"{label} memory", baseline.memory_bytes, other.memory_bytes)
        yield from _if_unlike(f"{label} has a profile", baseline.profile is not None, other.profile is not None)
        return
    before, after = baseline.profile.model_dump(), other.profile.model_dump()
    for key in before:
        if key != "name":
            yield from _if_unlike(f"{label} {key}", before[key], after[key])


def _environment(baseline: Subject, other: Subject) -> Iterator[Unlike]:
    before, after = baseline.environment, other.environment
    if before is None or after is None:
        if before is not after:
            yield Unlike(what="software", baseline=before and _software(before), other=after and _software(after))
        return
    for name in Environment.model_fields:
        yield from _if_unlike(name.replace("_", " "), getattr(before, name), getattr(after, name))


def _software(known: Environment) -> str:
    return f"gpubalance {known.gpubalance}, tensorflow {known.tensorflow}"


def _if_unlike(what: str, baseline: object, other: object) -> Iterator[Unlike]:
    if baseline != other:
        yield Unlike(what=what, baseline=_text(baseline), other=_text(other))


def _text(value: object) -> str | None:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return None if value is None else f"{value:g}" if isinstance(value, float) else clean(str(value))
