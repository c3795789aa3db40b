"""Which devices are equal, so that what one of them does alone says what the others do."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from gpubalance.devices.nvml import Card, with_gpu
from gpubalance.settings.device import Device
from gpubalance.system.deadlines import within_or

Facts = tuple[object, ...]


def first_alike(devices: Sequence[Device]) -> list[int]:
    """For each device the number of the first one that equals it; its own if none before it does.

    Equal devices have one name, memory and profile, and are on one host: processors, PCIe and
    drivers differ between hosts. GPUs of this host also have in common what NVML says of their
    compute capability, PCIe link, power limit and highest clock, or that it does not say it.
    """
    kinds = [_kind(device) for device in devices]
    return [kinds.index(kind) for kind in kinds]


def _kind(device: Device) -> Facts:
    facts = _speed_facts(device.uuid) if device.told_by_nvml else ()
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
