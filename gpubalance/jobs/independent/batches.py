"""The batch that a device trains with if none is given."""

from __future__ import annotations

from gpubalance.jobs.keep.saved_probes import best_probe, find_device
from gpubalance.settings.choices import DEFAULT_BATCH
from gpubalance.settings.device import Device
from gpubalance.settings.requests import Settings


def sensible_batch(device: Device, settings: Settings) -> int:
    """The smallest batch within 5 % of the device's best by its probe; without one, 64."""
    probe = best_probe([device], settings)
    found = probe and find_device(probe, device)
    return found.sensible.batch if found and found.sensible else DEFAULT_BATCH
