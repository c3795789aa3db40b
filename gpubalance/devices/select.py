"""Which devices the words of --gpus name, and which of them are equal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from gpubalance.devices.nvml import Card, normal_bus_id, with_gpu
from gpubalance.errors import UsageError
from gpubalance.settings.device import Device
from gpubalance.system.deadlines import within_or
from gpubalance.text import clean

_UUID_KIND = re.compile(r"^(gpu|mig)-")
_SHORTEST_PREFIX = 3


def select(
    tokens: Sequence[str] | None, devices: Sequence[Device]
) -> tuple[Device, ...]:
    """The devices that `tokens` name, in the tokens' order; all devices for None.

    A token is an index (`alpha:0` on a named host), a bus id, a UUID, or the beginning of a UUID:
    at least three characters after an optional `GPU-`. Raises UsageError, with the candidates, for
    a token that names no device or several, and for a device named twice.
    """
    if tokens is None:
        return tuple(devices)
    if not tokens:
        raise UsageError("no device is named", remedy=_choice(devices))
    chosen: dict[str, Device] = {}
    for token in tokens:
        device = _only(token, devices)
        if device.uuid in chosen:
            raise UsageError(
                f"{device.label} is named twice", remedy="name each device once"
            )
        chosen[device.uuid] = device
    return tuple(chosen.values())


def _only(token: str, devices: Sequence[Device]) -> Device:
    shown = clean(token, limit=80)
    matches = _matches(token.strip().casefold(), devices)
    if not matches:
        raise UsageError(f"there is no device {shown!r}", remedy=_choice(devices))
    if len(matches) > 1:
        raise UsageError(
            f"{shown!r} matches {len(matches)} devices", remedy=_choice(matches)
        )
    return matches[0]


def _matches(token: str, devices: Sequence[Device]) -> list[Device]:
    """The devices with that index, else that bus id, else that UUID, else a UUID that begins so.

    The order matters: `123` may be an index and the beginning of a UUID, and one UUID may be the
    beginning of another.
    """
    by_index = [device for device in devices if device.called.casefold() == token]
    if by_index:
        return by_index
    bus_id = normal_bus_id(token)
    by_bus = [
        device for device in devices if bus_id is not None and device.bus_id == bus_id
    ]
    if by_bus:
        return by_bus
    by_uuid = [device for device in devices if device.uuid.casefold() == token]
    if by_uuid:
        return by_uuid
    if len(_UUID_KIND.sub("", token)) < _SHORTEST_PREFIX:
        return []
    return [device for device in devices if _begins(device.uuid.casefold(), token)]


def _begins(uuid: str, token: str) -> bool:
    return uuid.startswith(token) or _UUID_KIND.sub("", uuid).startswith(token)


def _choice(devices: Sequence[Device]) -> str:
    if not devices:
        return "there are no devices here"
    rows = ["name one of these by index, UUID or bus id:"]
    rows += [
        f"  {device.called}  {clean(device.name)}  {clean(device.uuid)}"
        for device in devices
    ]
    return "\n".join(rows)


Facts = tuple[object, ...]


def first_equal(devices: Sequence[Device]) -> list[int]:
    """For each device the number of the first one that equals it; its own if none before it does.

    Equal devices have one name, memory and profile, and are on one host: processors, PCIe and
    drivers differ between hosts. GPUs of this host also have in common what NVML says of their
    compute capability, PCIe link, power limit and highest clock, or that it does not say it.
    """
    kinds = [_kind(device) for device in devices]
    return [kinds.index(kind) for kind in kinds]


def _kind(device: Device) -> Facts:
    facts = _speed_facts(device.uuid) if device.is_local_gpu else ()
    return (
        device.host,
        device.simulated,
        device.name,
        device.memory_bytes,
        device.profile,
        facts,
    )


@cache  # what is announced and what is then probed must be the same devices
def _speed_facts(uuid: str) -> Facts:
    """What NVML says of a GPU that decides how fast it is, beside its name and memory."""

    def facts(card: Card) -> Facts:
        return (
            card.ask("CudaComputeCapability"),
            card.ask("MaxPcieLinkWidth"),  # that of card and slot together
            card.ask("MaxPcieLinkGeneration"),
            card.ask("EnforcedPowerLimit"),
            card.ask("MaxClockInfo", card.nvml.NVML_CLOCK_SM),
        )

    return within_or(None, lambda: with_gpu(uuid, facts)) or ()
