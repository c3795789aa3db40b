"""The memory of this process's devices, as TensorFlow's allocators know it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

import tensorflow as tf

from gpubalance.engine.runtime import local_gpus
from gpubalance.settings.device import Device


def memory_limits_bytes(
    devices: Sequence[Device], names: Sequence[str]
) -> tuple[int | None, ...]:
    """Bytes that TensorFlow's allocator may take of each device, None without a limit.

    A simulated device's are those of its profile.
    """
    limits = []
    for device, name in zip(devices, names, strict=True):
        if device.profile:
            limits.append(device.profile.memory)
        else:
            limits.append(memory_limit_bytes(name))
    return tuple(limits)


def memory_limit_bytes(name: str) -> int | None:
    """Bytes that the allocator may take of a device; None if it has no limit of its own."""
    if name.startswith("GPU"):
        limits = {gpu.name: int(gpu.memory_limit) for gpu in local_gpus()}
        return limits.get(f"/device:{name}")
    mebibytes = os.environ.get("TF_CPU_BFC_MEM_LIMIT_IN_MB", "")
    is_limited = os.environ.get("TF_CPU_ALLOCATOR_USE_BFC", "").lower() in ("1", "true")
    if is_limited and mebibytes.isdigit():
        return int(mebibytes) << 20
    return None


def memory_peaks(
    devices: Sequence[Device], names: Sequence[str], by_profile: Sequence[int | None]
) -> tuple[int | None, ...]:
    """The most bytes that TensorFlow held on each device since the last call, None if unknown.

    A simulated device's are those `by_profile`. All CPU devices of a process share one allocator,
    so several have no peaks of their own.
    """
    share_one = names[0].startswith("CPU") and len(names) > 1
    peaks = []
    for device, name, profiled in zip(devices, names, by_profile, strict=True):
        if device.profile or share_one:
            peaks.append(profiled)
        else:
            peaks.append(memory_bytes(name, "peak") or None)
            reset_memory_peak(name)
    return tuple(peaks)


def memory_bytes(name: str, what: str) -> int | None:
    """The `current` or `peak` bytes on a device; None if its allocator does not report them."""
    with contextlib.suppress(ValueError):
        return int(tf.config.experimental.get_memory_info(name)[what])
    return None


def reset_memory_peak(name: str) -> None:
    """Starts a new peak, if the allocator keeps one."""
    with contextlib.suppress(ValueError):
        tf.config.experimental.reset_memory_stats(name)
