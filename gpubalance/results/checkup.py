"""The record of `doctor`."""

from __future__ import annotations

from typing import Literal

from gpubalance.results.common import SCHEMA_VERSION, Number
from gpubalance.settings.device import Device
from gpubalance.settings.record import Record

Status = Literal["ok", "warning", "failure", "skipped"]


class Check(Record):
    """One thing that was looked at. `next` is what to do about it, with the command where there is one."""

    code: str
    status: Status
    what: str
    detail: str
    next: str | None = None


class CopyTime(Record):
    """A copy of random data between two devices, which are places in `devices`.

    `intact` says whether all of it arrived; `peer_to_peer` what the driver says of direct copies: `direct`, or why not.
    """

    source: int
    target: int
    bytes: int
    seconds: Number
    bytes_per_s: Number
    intact: bool
    peer_to_peer: str | None


class AllReduceTime(Record):
    """A sum over all devices of as many bytes as the model's gradients have.

    `bytes_per_s` is bytes / seconds; `bus_bytes_per_s` that times 2(n−1)/n, which compares over numbers of devices.
    """

    bytes: int
    seconds: Number
    bytes_per_s: Number
    bus_bytes_per_s: Number
    intact: bool


class Checkup(Record):
    """What `doctor` found.

    The devices are those that the work was tried on; `complete` is false if it was cut short.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["checkup"] = "checkup"
    created: str
    devices: tuple[Device, ...]
    checks: tuple[Check, ...]
    copies: tuple[CopyTime, ...] = ()
    all_reduce: AllReduceTime | None = None
    complete: bool = True

    @property
    def first_failure(self) -> Check | None:
        """The one to mend first: the checks are in the order in which one thing stands on another."""
        return next((check for check in self.checks if check.status == "failure"), None)
