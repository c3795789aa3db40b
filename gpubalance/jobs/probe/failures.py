"""What failed in a probe: a device that holds nothing, and one error for all of them."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.errors import (
    EnvironmentFault,
    GpubalanceError,
    NothingFits,
    PartialResult,
)
from gpubalance.jobs.endings import one_error
from gpubalance.jobs.probe.device_probe import batch_limit
from gpubalance.jobs.probe.probed_device import ProbedDevice
from gpubalance.numbers.units import format_bytes
from gpubalance.settings.device import Device


def nothing_fits(probed: ProbedDevice) -> NothingFits | None:
    """The error of a device that does not hold a single sample, None if it does."""
    limit = batch_limit(probed)
    if limit is None or limit.fits is not None:
        return None
    held = [
        trial.memory_peak_bytes for trial in limit.trials if trial.memory_peak_bytes
    ]
    if limit.needed_bytes is not None:
        needs = f"it needs {format_bytes(limit.needed_bytes)}"
    elif held:
        needs = f"it held {format_bytes(held[-1])} when it asked for more"
    else:
        needs = "what it needs is not known"
    has = "an unknown number of bytes"
    if limit.memory_bytes is not None:
        has = format_bytes(limit.memory_bytes)
    model = probed.bench.request.settings.model
    return NothingFits(
        f"{probed.device.label} does not hold {model} with a batch of {limit.fails}: {needs}, "
        f"and {has} are free",
        remedy="use a smaller model, a lower --precision, or a device with more memory",
    )


def what_failed(devices: Sequence[ProbedDevice]) -> GpubalanceError | None:
    """One error for all devices' errors, None if there are none. Its exit code is the worst's."""
    errors: list[tuple[Device, GpubalanceError]] = []
    for probed in devices:
        errors += [(probed.device, error) for error in probed.errors]
    if not errors:
        return None
    worst: type[GpubalanceError] = PartialResult
    if all(isinstance(probed.error, EnvironmentFault) for probed in devices):
        worst = EnvironmentFault
    elif {type(error) for _, error in errors} == {NothingFits}:
        worst = NothingFits
    return one_error(worst, errors)
