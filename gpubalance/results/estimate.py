"""The record of what a probe would do: of `--dry-run`."""

from __future__ import annotations

from gpubalance.settings.record import Record
from gpubalance.settings.requests import ProbeRequest


class DeviceEstimate(Record):
    """A device's part: the batch sizes, up to a limit that is `guessed` where nothing tells it."""

    device: int
    sizes: tuple[int, ...]
    limit: int
    guessed: bool
    children: int
    seconds: float


class Estimate(Record):
    """What a probe would do. `seconds` is for all devices."""

    kind: str = "probe-estimate"
    request: ProbeRequest
    devices: tuple[DeviceEstimate, ...]
    seconds: float
