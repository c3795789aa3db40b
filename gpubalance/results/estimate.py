"""What a probe or a balance would do: the records that `--dry-run` gives."""

from __future__ import annotations

from typing import Literal

from gpubalance.settings.record import Record
from gpubalance.settings.requests import BalanceRequest, ProbeRequest

KINDS = ("probe-estimate", "balance-estimate")


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

    kind: Literal["probe-estimate"] = "probe-estimate"
    request: ProbeRequest
    devices: tuple[DeviceEstimate, ...]
    seconds: float


class PhaseEstimate(Record):
    """A part of a balance."""

    name: str
    seconds: float


class BalanceEstimate(Record):
    """What a balance would do. `probed` is when the probe was made that it has, null where it makes one."""

    kind: Literal["balance-estimate"] = "balance-estimate"
    request: BalanceRequest
    probed: str | None
    phases: tuple[PhaseEstimate, ...]
    seconds: float
