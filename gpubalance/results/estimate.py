"""What a probe would do: the record that `--dry-run` gives."""

from __future__ import annotations

from gpubalance.settings.record import Record
from gpubalance.settings.requests import ProbeRequest


class DeviceEstimate(Record):
    """One device's batch sizes, up to its limit. `guessed`: nothing tells the limit before it is probed."""

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
