"""Says that a GPU is lost, where that is what an error means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gpubalance.devices.lost import lost_gpu
from gpubalance.errors import DeadlinePassed, EnvironmentFault, GpuLost, PartialResult, TimeLimitPassed
from gpubalance.remedies import known
from gpubalance.settings.device import Device


@contextmanager
def lost_gpus_told(devices: Sequence[Device]) -> Iterator[None]:
    """From a worker a lost GPU looks like an error of CUDA's, a crash or silence: where it is one, raises GpuLost."""
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
