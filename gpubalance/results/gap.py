"""Why a run gives less than its devices alone: the distance from the solo sum, by its causes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from gpubalance.results.common import Number, Positive
from gpubalance.settings.record import Record

_ROUNDING = 1e-9  # of a rate


class DeviceRun(NamedTuple):
    """One device in a run: its best alone (samples/s), its batch, and its compute plus update."""

    solo_best: float
    batch: int
    alone_s: float
    busy_s: float


class SoloGap(Record):
    """Why the run gives less than the devices alone, in samples per second; below 0 is a gain.

    `left_out` is what devices without samples gave alone; `batch_sizes` what the others lose
    because their batch is not their best, as memory is less; `slowdown`, for each device, the loss
    from being slower in the run than alone; `imbalance` the wait for the slowest; `sync` what comes
    after it; `slow` what rare slow steps cost; `without_xla` what the best device alone would give
    more with XLA, as Keras runs it. With `throughput` they add up to `solo_sum`.
    """

    solo_sum: Positive
    left_out: Number
    batch_sizes: Number
    slowdown: tuple[Number, ...]
    imbalance: Number
    sync: Number
    slow: Number
    throughput: Number
    without_xla: Number = 0.0


def divide_gap(
    devices: Sequence[DeviceRun],
    step_time_s: float,
    slow_s: float = 0.0,
    xla: float = 0.0,
) -> SoloGap:
    """The parts of Σ rᵢ − B/T, cause by cause, so that the differences add up.

    `xla` is how much more the devices give alone with XLA, beside rᵢ. The steps are Σ rᵢ, for
    devices with samples; Σ bᵢ/tᵢ(bᵢ), alone at their batches; Σ bᵢ/(cᵢ+uᵢ),
    with their compute and update in the run; B / max (cᵢ+uᵢ), when all wait for the slowest; B/(T −
    slow), with sync; B/T, with rare slow steps.
    """
    used = [device for device in devices if device.batch]
    global_batch = sum(device.batch for device in used)
    solo = sum(device.solo_best for device in used)
    left_out = sum(device.solo_best for device in devices if not device.batch)
    alone = []
    joint = []
    for device in devices:
        alone.append(device.batch / device.alone_s if device.batch else 0.0)
        joint.append(device.batch / device.busy_s if device.batch else 0.0)
    together = global_batch / max(device.busy_s for device in used)
    synced = global_batch / (step_time_s - slow_s)
    throughput = global_batch / step_time_s
    return SoloGap(
        solo_sum=sum(device.solo_best for device in devices) + xla,
        left_out=left_out,
        batch_sizes=_difference(solo, sum(alone)),
        slowdown=tuple(map(_difference, alone, joint)),
        imbalance=_difference(sum(joint), together),
        sync=_difference(together, synced),
        slow=_difference(synced, throughput),
        throughput=throughput,
        without_xla=_difference(xla, 0.0),
    )


def _difference(more: float, less: float) -> float:
    """0 for what only rounding makes differ."""
    if math.isclose(more, less, rel_tol=_ROUNDING):
        return 0.0
    return more - less
