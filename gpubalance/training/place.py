"""TensorFlow in the user's own process, on a split's devices."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpubalance.engine.pace import Clock, clocks
from gpubalance.engine.runtime import build_strategy, use_devices
from gpubalance.settings.device import Device, JointProfile


@dataclass(frozen=True)
class Place:
    """A strategy over the devices that get samples, TensorFlow's names of them, and their clocks."""

    strategy: Any
    names: tuple[str, ...]
    clocks: tuple[Clock, ...]


def take_place(devices: Sequence[Device], joint: JointProfile, all_reduce: str) -> Place:
    """Sets TensorFlow up for these devices. Raises EnvironmentFault where it was used before without them."""
    gpus = [device.uuid for device in devices if not device.simulated]
    if gpus:
        # What CUDA and TensorFlow read when they are first used; where that was before, `use_devices` says so.
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        os.environ["TF_MIN_GPU_MULTIPROCESSOR_COUNT"] = "1"
    names = use_devices(devices)
    strategy = build_strategy(names, all_reduce)
    return Place(strategy, names, tuple(clocks([device.profile for device in devices], joint, seed=0)))
