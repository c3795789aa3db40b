"""The devices that a command works on: GPUs through NVML, or simulated ones."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from gpubalance.config import Device, JointProfile
from gpubalance.devices.nvml import read
from gpubalance.devices.profile import simulated_devices
from gpubalance.devices.select import select
from gpubalance.devices.visible import mark_hidden
from gpubalance.errors import EnvironmentFault
from gpubalance.gpus import Reading
from gpubalance.remedies import known, match

_SIMULATE = "without a GPU: --simulate FILE (a profile, see configs/) or --simulate N (plain CPU devices)"


@dataclass(frozen=True)
class Machine:
    """All devices here, what a joint run of simulated ones adds, and the driver's version."""

    devices: tuple[Device, ...]
    joint: JointProfile
    driver: str | None

    def select(self, gpus: Sequence[str] | None) -> tuple[Device, ...]:
        """The devices that --gpus names; all for None. Raises UsageError for one that is not here or can't be used."""
        return select(gpus, self.devices)


def read_gpus() -> Reading:
    """The GPUs through NVML; those that CUDA_VISIBLE_DEVICES hides are marked as not to be used."""
    return mark_hidden(read(), os.environ)


def find_machine(simulate: str | None) -> Machine:
    """Raises EnvironmentFault where there is no GPU that can be used, and BadInput for a bad profile."""
    if simulate is not None:
        devices, joint = simulated_devices(simulate)
        return Machine(devices, joint, None)
    reading = read_gpus()
    if reading.problem:
        cause = known(reading.code).cause if reading.code else ""
        raise EnvironmentFault(reading.problem, cause=cause, remedy=f"{reading.remedy}\n{_SIMULATE}")
    usable = tuple(device for gpu in reading.gpus for device in gpu.devices)
    if not usable:
        why = "; ".join(f"GPU {gpu.index}: {gpu.unusable}" for gpu in reading.gpus)
        found = (match(gpu.unusable or "") for gpu in reading.gpus)
        remedies = dict.fromkeys(row.remedy for row in found if row)
        raise EnvironmentFault(f"no GPU can be used: {why}", remedy="\n".join([*remedies, _SIMULATE]))
    return Machine(usable, JointProfile(), reading.driver_version)
