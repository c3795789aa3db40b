"""The devices of a strategy, as the step and its data need them, and those of a user's
own process.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpubalance.devices.environment import gpu_environment
from gpubalance.engine.pace import Clock, clocks
from gpubalance.engine.runtime import build_strategy, use_devices, used_before
from gpubalance.settings.cluster import Cluster
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.summing import AS_USUAL, Summing

# The UUIDs that were visible when CUDA and TensorFlow first looked for GPUs in this process: they
# look only once.
_shown: list[str] = []
# The indices of simulated devices in the order of their first use: each is the CPU device of its
# place here.
_simulated: list[int] = []


@dataclass(frozen=True)
class Place:
    """A strategy over the devices that get samples, their clocks, and TensorFlow's names for this
    process's devices.

    In a cluster each process has one of the devices.
    """

    strategy: Any
    names: tuple[str, ...]
    clocks: tuple[Clock, ...]
    labels: tuple[str, ...] = ()
    cluster: Cluster | None = None
    summing: Summing = AS_USUAL

    @property
    def first(self) -> int:
        """The index of this process's first device among all."""
        return self.cluster.rank if self.cluster else 0

    @property
    def here(self) -> slice:
        """The indices of this process's devices among all."""
        return slice(self.first, self.first + len(self.names))

    @property
    def replicas(self) -> int:
        """The number of devices in all processes."""
        return len(self.clocks)


def place_of(
    devices: Sequence[Device],
    names: tuple[str, ...],
    joint: JointProfile,
    summing: Summing,
    cluster: Cluster | None = None,
    *,
    seed: int = 0,
) -> Place:
    """The place of all these devices, of which this process has those that TensorFlow calls by
    these names.
    """
    profiles, labels = [one.profile for one in devices], tuple(one.label for one in devices)
    made = clocks(profiles, joint, seed=seed, in_cluster=cluster is not None)
    strategy = build_strategy(names, summing.all_reduce, cluster)
    return Place(strategy, names, tuple(made), labels, cluster, summing)


def take_names(devices: Sequence[Device]) -> tuple[str, ...]:
    """Sets TensorFlow up in the user's own process; returns its names for these devices.

    Raises EnvironmentFault if it was used before without them.
    """
    if devices[0].simulated:
        _simulated.extend(device.index for device in devices if device.index not in _simulated)
        return use_devices(devices, cpus=[_simulated.index(device.index) for device in devices])
    gpus = [device.uuid for device in devices]
    if not _shown:
        os.environ.update(gpu_environment(devices))
        _shown.extend(gpus)
    if not set(gpus) <= set(_shown):
        raise used_before("does not see all of its GPUs")
    return use_devices(devices)
