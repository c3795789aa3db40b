"""The most arithmetic that a GPU could do, as far as NVML tells it."""

from __future__ import annotations

from typing import Any

from gpubalance.devices.nvml import ask, with_gpu
from gpubalance.settings.choices import Precision

_PER_CORE_AND_CYCLE = 2  # a fused multiply-add


def peak_flops(uuid: str, precision: Precision) -> float | None:
    """Peak FLOP/s in float32: 2 · CUDA cores · maximum SM clock. None where NVML does not tell both, as of MIG slices.

    Also None for every other precision: those run on tensor cores, whose number and rate NVML does not tell, and which
    differ between cards of one compute capability (a GeForce's accumulate at half the rate of its professional twin).
    The clock is the highest that the card can be set to; under load it seldom holds it.
    """
    return with_gpu(uuid, _float32) if precision == "float32" else None


def _float32(nvml: Any, handle: Any) -> float | None:
    cores = ask(nvml, nvml.nvmlDeviceGetNumGpuCores, handle)
    clock_mhz = ask(nvml, nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM)
    return float(_PER_CORE_AND_CYCLE * cores * clock_mhz * 1_000_000) if cores and clock_mhz else None
