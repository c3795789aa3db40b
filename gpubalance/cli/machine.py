"""The devices that a command works on: GPUs through NVML, or simulated ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpubalance.errors import EnvironmentFault

if TYPE_CHECKING:
    from gpubalance.config import Device, JointProfile

_SIMULATE = "without a GPU: --simulate FILE (a profile, see configs/) or --simulate N (plain CPU devices)"


@dataclass(frozen=True)
class Machine:
    """All devices here, what a joint run of simulated ones adds, and the driver's version."""

    devices: tuple[Device, ...]
    joint: JointProfile
    driver: str | None

    def select(self, gpus: Sequence[str] | None) -> tuple[Device, ...]:
        """The devices that --gpus names; all for None."""
        from gpubalance.devices.select import select

        return select(gpus, self.devices)


def find_machine(simulate: str | None) -> Machine:
    """Raises EnvironmentFault where there is no GPU that can be used, and BadInput for a bad profile."""
    from gpubalance.config import JointProfile

    if simulate is not None:
        from gpubalance.devices.profile import simulated_devices

        devices, joint = simulated_devices(simulate)
        return Machine(devices, joint, None)
    from gpubalance.devices.nvml import read

    reading = read()
    if reading.problem:
        raise EnvironmentFault(reading.problem, remedy=f"{reading.remedy}\n{_SIMULATE}")
    usable = tuple(device for gpu in reading.gpus for device in gpu.devices)
    if not usable:
        why = "; ".join(f"GPU {gpu.index}: {gpu.unusable}" for gpu in reading.gpus)
        raise EnvironmentFault(f"no GPU can be used: {why}", remedy=_SIMULATE)
    return Machine(usable, JointProfile(), reading.driver_version)
