"""What NVML says about the machine's NVIDIA GPUs. What it does not say is null, never 0."""

from __future__ import annotations

import re

from gpubalance.settings.device import Device
from gpubalance.settings.record import Record

_BUS_ID = re.compile(
    r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", re.IGNORECASE
)


class GpuProcess(Record):
    """Another process on a GPU. In a container the driver gives the host's PIDs."""

    pid: int | None
    name: str | None
    memory_bytes: int | None


class MigSlice(Record):
    uuid: str
    name: str | None
    memory_bytes: int | None


class Gpu(Record):
    """One GPU; what NVML does not say is null.

    `index` is NVML's, in PCI bus order, unlike CUDA's default. `unusable` is the reason why the GPU
    as a whole can't be used.
    """

    index: int
    uuid: str
    bus_id: str | None = None
    name: str | None = None
    compute_capability: str | None = None
    memory_bytes: int | None = None
    memory_free_bytes: int | None = None
    processes: tuple[GpuProcess, ...] | None = None
    mig: bool = False
    mig_slices: tuple[MigSlice, ...] = ()
    unusable: str | None = None

    @property
    def device(self) -> Device:
        """The whole GPU, even if it can't be used."""
        return self._device(self.uuid, self.name, self.memory_bytes)

    @property
    def devices(self) -> tuple[Device, ...]:
        """What can be measured alone: the GPU, its MIG slices (under its own index), or nothing."""
        if not self.mig:
            return () if self.unusable else (self.device,)
        slices = self.mig_slices
        return tuple(
            self._device(own.uuid, own.name, own.memory_bytes) for own in slices
        )

    def _device(self, uuid: str, name: str | None, memory_bytes: int | None) -> Device:
        return Device(
            index=self.index,
            uuid=uuid,
            name=name or "unknown GPU",
            memory_bytes=memory_bytes,
            simulated=False,
            bus_id=self.bus_id,
        )


class Reading(Record):
    """The GPUs, or why there are none.

    That is the `problem`, its `remedy`, and its `code` in the table of known errors.
    """

    driver_version: str | None = None
    cuda_driver_version: str | None = None
    nvml_version: str | None = None
    gpus: tuple[Gpu, ...] = ()
    problem: str | None = None
    remedy: str | None = None
    code: str | None = None


def normal_bus_id(text: str) -> str | None:
    """`0000:01:00.0`, as Linux and TensorFlow write it, for a bus id in another form.

    NVML writes `00000000:01:00.0`, lspci `01:00.0`.
    """
    match = _BUS_ID.fullmatch(text)
    if not match:
        return None
    domain, bus, slot, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{slot}.{function or 0}".lower()
