"""Finds the devices that `--gpus` names. Pure: the devices come from NVML or a profile."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from gpubalance.devices.gpus import normal_bus_id
from gpubalance.errors import UsageError
from gpubalance.settings.device import Device
from gpubalance.text import clean

_UUID_KIND = re.compile(r"^(gpu|mig)-")
_SHORTEST_PREFIX = 3


def select(tokens: Sequence[str] | None, devices: Sequence[Device]) -> tuple[Device, ...]:
    """The devices that `tokens` name, in the tokens' order; all devices for None.

    A token is an index (`alpha:0` on a named host), a bus id, a UUID, or the beginning of a UUID: at least three
    characters after an optional `GPU-`.
    Raises UsageError, with the candidates, for a token that names no device or several, and for a device named twice.
    """
    if tokens is None:
        return tuple(devices)
    if not tokens:
        raise UsageError("no device is named", remedy=_choice(devices))
    chosen: list[Device] = []
    for token in tokens:
        device = _only(token, devices)
        if any(device.uuid == earlier.uuid for earlier in chosen):
            raise UsageError(f"{device.label} is named twice", remedy="name each device once")
        chosen.append(device)
    return tuple(chosen)


def _only(token: str, devices: Sequence[Device]) -> Device:
    shown = clean(token, limit=80)
    found = _matches(token.strip().casefold(), devices)
    if not found:
        raise UsageError(f"there is no device {shown!r}", remedy=_choice(devices))
    if len(found) > 1:
        raise UsageError(f"{shown!r} names {len(found)} devices", remedy=_choice(found))
    return found[0]


def _matches(token: str, devices: Sequence[Device]) -> list[Device]:
    """The devices with that index, else that bus id, else that UUID, else a UUID that begins so.

    The order matters: `123` may be an index and the beginning of a UUID, and one UUID may be the beginning of another.
    """
    bus_id = normal_bus_id(token)
    begins = _UUID_KIND.sub("", token)
    long_enough = len(begins) >= _SHORTEST_PREFIX
    for readings in (
        [d for d in devices if token == d.called.casefold()],
        [d for d in devices if bus_id is not None and bus_id == d.bus_id],
        [d for d in devices if token == d.uuid.casefold()],
        [d for d in devices if long_enough and _begins(d.uuid.casefold(), token)],
    ):
        if readings:
            return readings
    return []


def _begins(uuid: str, token: str) -> bool:
    return uuid.startswith(token) or _UUID_KIND.sub("", uuid).startswith(token)


def _choice(devices: Iterable[Device]) -> str:
    rows = [f"  {d.called}  {clean(d.name)}  {clean(d.uuid)}" for d in devices]
    return "\n".join(["name one of these by index, UUID or bus id:", *rows]) if rows else "there are no devices here"
