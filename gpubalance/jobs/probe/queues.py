"""Which devices a probe measures at the same time."""

from __future__ import annotations

from gpubalance.devices.hosts import are_reached
from gpubalance.settings.device import hosts_of
from gpubalance.settings.requests import ProbeRequest


def queues(request: ProbeRequest) -> list[list[int]]:
    """Queues of device numbers: devices in a queue are measured one after the other, the queues at the same time.

    One queue in all, or one for each device if that is asked for, or one for each host if each is its own machine.
    """
    numbers = range(len(request.devices))
    if request.parallel:
        return [[number] for number in numbers]
    if not are_reached():
        return [[*numbers]]
    hosts = hosts_of(request.devices)
    return [[number for number in numbers if request.devices[number].host == host] for host in hosts]


def phase_names(request: ProbeRequest) -> list[str]:
    """The phases of a probe: one for each device, or one for all if there are several queues."""
    if request.parallel:
        return ["all devices at once"]
    if len(queues(request)) > 1:
        return ["all hosts at once"]
    return [f"{device.label} alone" for device in request.devices]
