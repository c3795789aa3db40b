"""One error for the devices that failed while the others went on."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.errors import GpubalanceError, OutOfMemory
from gpubalance.settings.device import Device


def one_error(kind: type[GpubalanceError], failed: Sequence[tuple[Device, GpubalanceError]]) -> GpubalanceError:
    """An error of that kind that names each device, with what to do for each."""
    several = len({device.label for device, _ in failed}) > 1
    remedies = dict.fromkeys(f"{f'{device.label}: ' if several else ''}{error.remedy}" for device, error in failed)
    return kind(
        "; ".join(dict.fromkeys(_named(device, error) for device, error in failed)),
        cause="" if several else failed[0][1].cause,
        remedy="\n".join(remedies),
        # Of a lack of memory the log says no more than the message does.
        log=next((error.log for _, error in failed if error.log and not isinstance(error, OutOfMemory)), ""),
    )


def _named(device: Device, error: GpubalanceError) -> str:
    return error.message if device.label in error.message else f"{device.label}: {error.message}"
