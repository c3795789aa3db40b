"""Finds out whether an error means that a GPU is lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gpubalance.devices.gpus import Gpu, Reading
from gpubalance.devices.nvml import read
from gpubalance.errors import DeadlinePassed, EnvironmentFault, GpuLost, PartialResult, TimeLimitPassed
from gpubalance.remedies import known, match
from gpubalance.settings.device import Device
from gpubalance.system.deadlines import within_or


@contextmanager
def lost_gpus_told(devices: Sequence[Device]) -> Iterator[None]:
    """Raises GpuLost if a GPU is lost: from a worker that looks like a CUDA error, a crash or silence."""
    try:
        yield
    except (EnvironmentFault, PartialResult, DeadlinePassed) as error:
        lost = None if isinstance(error, GpuLost | TimeLimitPassed) else lost_gpu(devices)
        if lost is None:
            raise
        row = known("gpu-lost")
        raise GpuLost(
            f"{lost.label} ({lost.name}) is lost: NVML no longer reaches it",
            cause=row.cause,
            remedy=row.remedy,
            log=error.log,
            partial=error.partial,
        ) from error


def lost_gpu(devices: Sequence[Device]) -> Device | None:
    """The first device that NVML no longer reaches; None if it reaches all, or does not answer."""
    gpus = [device for device in devices if device.told_by_nvml]
    there = within_or(Reading(), read).gpus if gpus else ()
    return next((device for device in gpus if there and _is_lost(device, there)), None)


def _is_lost(device: Device, gpus: Sequence[Gpu]) -> bool:
    for gpu in gpus:
        if device.uuid in (gpu.uuid, *(piece.uuid for piece in gpu.mig_slices)):
            row = match(gpu.unusable or "")
            return row is not None and row.code in ("gpu-lost", "gpu-needs-reset")
    return True
