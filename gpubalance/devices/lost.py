"""Whether a GPU that was here still is."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.devices.gpus import Gpu, Reading
from gpubalance.devices.nvml import read
from gpubalance.remedies import match
from gpubalance.settings.device import Device
from gpubalance.system.deadlines import within_or

_GONE = ("gpu-lost", "gpu-needs-reset")


def lost_gpu(devices: Sequence[Device]) -> Device | None:
    """The first of the devices that NVML no longer reaches; None where it reaches all, or does not answer."""
    gpus = [device for device in devices if not device.simulated]
    reading = within_or(Reading(problem="no answer"), read) if gpus else Reading()
    if reading.problem or not reading.gpus:
        return None
    return next((device for device in gpus if _is_lost(device, reading.gpus)), None)


def _is_lost(device: Device, gpus: Sequence[Gpu]) -> bool:
    for gpu in gpus:
        if device.uuid in (gpu.uuid, *(piece.uuid for piece in gpu.mig_slices)):
            row = match(gpu.unusable or "")
            return row is not None and row.code in _GONE
    return True
