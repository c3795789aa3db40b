"""What a joint run leaves of a device's memory, which it had to itself when it was probed."""

from __future__ import annotations

from gpubalance.planning.limit import MemoryCurve, Points

# All-reduce buffers, and a second copy of the gradients: facts of MirroredStrategy with NCCL's fused all-reduce.
_COPIES_OF_GRADIENTS = 2


def joint_bytes(gradient_bytes: int, devices: int) -> int:
    """Bytes that a joint run takes on each device beside what it takes alone; 0 for one device."""
    return _COPIES_OF_GRADIENTS * gradient_bytes if devices > 1 else 0


def joint_limit(points: Points, fits: int, *, memory_bytes: int | None, extra_bytes: int) -> int:
    """The largest batch, up to `fits`, that leaves `extra_bytes` of the device's memory free.

    By the curve through the measured (batch, peak bytes) points. Where memory is not known nothing is taken off.
    """
    fitting = [point for point in points if point[0] <= fits]
    if memory_bytes is None or not extra_bytes or not fitting:
        return fits
    curve = MemoryCurve.through(fitting, memory_bytes)
    if curve is None:
        return fits if fitting[-1][1] + extra_bytes <= memory_bytes else 0
    return max(0, min(fits, curve.largest_within(memory_bytes - extra_bytes)))
