"""Other processes on the GPUs that are to be measured: they take memory and time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpubalance.devices.gpus import Gpu, Process
from gpubalance.results.common import Warning_
from gpubalance.settings.device import Device
from gpubalance.text import clean

_SHOWN = 5


def occupied(devices: Sequence[Device], gpus: Sequence[Gpu]) -> Iterator[Warning_]:
    """A warning for each device that other processes compute on or hold memory of. They are left alone.

    A MIG slice shows its GPU's processes, as NVML does not tell which slice they are on.
    """
    there = {gpu.index: gpu.processes or () for gpu in gpus}
    for device in devices:
        others = () if device.simulated else there.get(device.index, ())
        if others:
            told = ", ".join(map(_told, others[:_SHOWN]))
            more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
            yield Warning_(
                code="gpu-in-use",
                message=f"{device.label} is used by {told}{more}",
                next="figures and limits are of what they leave: end what you don't need there, and measure again",
            )


def _told(process: Process) -> str:
    """`process 4242 (python train.py, 3000 MiB)`."""
    size = None if process.memory_bytes is None else f"{process.memory_bytes / (1 << 20):.0f} MiB"
    name = None if process.name is None else clean(process.name, 40)
    details = ", ".join(filter(None, (name, size or "memory not told")))
    return f"process {process.pid} ({details})"
