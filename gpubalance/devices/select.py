"""Which devices the words of --gpus name."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpubalance.devices.gpus import normal_bus_id
from gpubalance.errors import UsageError
from gpubalance.settings.device import Device
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
            f"{shown!r} names {len(matches)} devices", remedy=_choice(matches)
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
