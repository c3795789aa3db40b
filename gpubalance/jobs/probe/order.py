"""Which devices a probe measures itself, and which of them at the same time."""

from __future__ import annotations

from collections import defaultdict

from gpubalance.devices.alike import first_alike
from gpubalance.devices.hosts import are_reached
from gpubalance.settings.requests import ProbeRequest


def stand_ins(request: ProbeRequest) -> list[int]:
    """The number of the device that is probed for each: its own, or an equal one's before it."""
    if request.each:
        return list(range(len(request.devices)))
    return first_alike(request.devices)


def queues(request: ProbeRequest) -> list[list[int]]:
    """Queues of device numbers: those in a queue take turns, the queues are at the same time.

    One queue in all, or one for each device if that is asked for, or one for each host if each is
    its own machine. A device that is not probed follows the one that is probed for it.
    """
    keys: list[object] = [None] * len(request.devices)
    if request.parallel:
        keys = [*stand_ins(request)]
    elif are_reached():
        keys = [device.host for device in request.devices]
    found = defaultdict[object, list[int]](list)
    for number, key in enumerate(keys):
        found[key].append(number)
    return list(found.values())


def phase_names(request: ProbeRequest) -> list[str]:
    """The phase of each device: its own or its stand-in's, or one for all with several queues."""
    count = len(request.devices)
    if request.parallel:
        return ["all devices at once"] * count
    if len(queues(request)) > 1:
        return ["all hosts at once"] * count
    return [f"{request.devices[number].label} alone" for number in stand_ins(request)]
