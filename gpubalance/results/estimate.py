"""What a command would do: the records of `--dry-run`."""

from __future__ import annotations

from typing import Literal

from gpubalance.settings.record import Record
from gpubalance.settings.requests import BalanceRequest, LayersRequest, ProbeRequest

KINDS = ("probe-estimate", "balance-estimate", "layers-estimate")


class DeviceEstimate(Record):
    """One device's batch sizes, up to its limit. `guessed` means that the limit is unknown before a probe."""

    device: int
    sizes: tuple[int, ...]
    limit: int
    guessed: bool
    children: int
    seconds: float


class Estimate(Record):
    """What a probe would do. `seconds` is for all devices."""

    kind: Literal["probe-estimate"] = "probe-estimate"
    request: ProbeRequest
    devices: tuple[DeviceEstimate, ...]
    seconds: float


class PhaseEstimate(Record):
    """A part of a command, and its duration."""

    name: str
    seconds: float


class PhasesEstimate(Record):
    """What a command of several phases would do. `probed` is when its probe was made, null if it will make one."""

    probed: str | None
    phases: tuple[PhaseEstimate, ...]
    seconds: float


class BalanceEstimate(PhasesEstimate):
    """What a balance would do."""

    kind: Literal["balance-estimate"] = "balance-estimate"
    request: BalanceRequest


class LayersEstimate(PhasesEstimate):
    """What `layers` would do."""

    kind: Literal["layers-estimate"] = "layers-estimate"
    request: LayersRequest
