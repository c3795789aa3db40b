"""Sets up TensorFlow in the user's own process, on a split's devices."""

from __future__ import annotations

import os
from collections.abc import Sequence

from gpubalance.engine.pace import clocks
from gpubalance.engine.place import Place
from gpubalance.engine.runtime import build_strategy, use_devices, used_before
from gpubalance.settings.cluster import Cluster
from gpubalance.settings.device import Device, JointProfile

# The UUIDs that were visible when CUDA and TensorFlow first looked for GPUs in this process: they look only once.
_shown: list[str] = []


def take_place(
    devices: Sequence[Device], joint: JointProfile, all_reduce: str, cluster: Cluster | None = None
) -> Place:
    """Sets TensorFlow up for these devices. Raises EnvironmentFault if it was used before without them."""
    profiles, labels = [device.profile for device in devices], tuple(device.label for device in devices)
    names = take_names(devices[cluster.rank : cluster.rank + 1] if cluster else devices)
    strategy = build_strategy(names, all_reduce, cluster)
    made = clocks(profiles, joint, seed=0, in_cluster=cluster is not None)
    return Place(strategy, names, tuple(made), labels, cluster)


def take_names(devices: Sequence[Device]) -> tuple[str, ...]:
    """TensorFlow's names for these devices of this process. Raises EnvironmentFault if it was used without them."""
    gpus = [device.uuid for device in devices if not device.simulated]
    if gpus and not _shown:
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        os.environ["TF_MIN_GPU_MULTIPROCESSOR_COUNT"] = "1"
        _shown.extend(gpus)
    if not set(gpus) <= set(_shown):
        raise used_before("does not see all of its GPUs")
    return use_devices(devices)
