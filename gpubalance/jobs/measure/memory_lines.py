"""Each device's memory as a line over its micro-batch, and the largest micro-batch by that."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.jobs.keep.probes import probe_of
from gpubalance.jobs.measure.window import Peaks
from gpubalance.planning.memory import Points, predict_limit
from gpubalance.results.probe import peaks_by_batch
from gpubalance.settings.device import Device
from gpubalance.settings.settings import Settings


def lines_through(
    devices: Sequence[Device], settings: Settings, sizes: Sequence[int], peaks: Peaks
) -> list[Points]:
    """Each device's memory at two sizes, by the peaks of these sizes, which fit.

    How it grows with the batch is told by a profile, or by a probe that was made here. Empty for a
    device of which either is unknown.
    """
    lines: list[Points] = []
    batches = sorted({1, min(sizes)})
    for device, size, peak in zip(devices, sizes, peaks, strict=True):
        line = []
        per_sample = _bytes_per_sample(device, settings)
        if peak and per_sample:
            line = [
                (batch, round(peak - per_sample * (size - batch))) for batch in batches
            ]
        lines.append(line)
    return lines


def _bytes_per_sample(device: Device, settings: Settings) -> float | None:
    if device.profile is not None:
        return device.profile.memory_per_sample
    probe = probe_of(device, settings)
    if probe is None:
        return None
    peaks = peaks_by_batch(probe.curve)
    if len(peaks) < 2:
        return None
    (small, low), (large, high) = peaks[-2:]
    return (high - low) / (large - small)


def limits_by(lines: Sequence[Points], devices: Sequence[Device]) -> list[int | None]:
    """Each device's largest micro-batch by its line; None if its memory or its use is unknown."""
    limits = []
    for line, device in zip(lines, devices, strict=True):
        limit = None
        if len(line) > 1 and device.memory_bytes:
            limit = predict_limit(line, device.memory_bytes)
        limits.append(limit)
    return limits
