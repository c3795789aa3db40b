"""The record of `doctor`."""

from __future__ import annotations

from typing import Literal

from gpubalance.results.common import Number, Result
from gpubalance.settings.device import Device, Host
from gpubalance.settings.record import Record

Status = Literal["ok", "warning", "failure", "skipped"]


class Check(Record):
    """One thing that was checked; `next` says what to do, with the command if there is one."""

    code: str
    status: Status
    what: str
    detail: str
    next: str | None = None


class CopyTime(Record):
    """A copy of random data between two devices, given by their places in `devices`.

    `intact` means that all of it arrived. `peer_to_peer` is what the driver says of direct copies:
    `direct`, or why not.
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

    `bytes_per_s` is bytes / seconds. `bus_bytes_per_s` is that times 2(n−1)/n, to compare different
    numbers of devices.
    """

    bytes: int
    seconds: Number
    bytes_per_s: Number
    bus_bytes_per_s: Number
    intact: bool


class Checkup(Result):
    """What `doctor` found; `complete` is false if it was interrupted.

    `devices` are those on which it tried work. `host` is null for the host that it ran on.
    """

    kind: Literal["checkup"] = "checkup"
    host: Host | None = None
    devices: tuple[Device, ...]
    checks: tuple[Check, ...]
    copies: tuple[CopyTime, ...] = ()
    all_reduce: AllReduceTime | None = None
    complete: bool = True

    @property
    def failures(self) -> list[Check]:
        """What failed, first what is to be mended first: each check depends on earlier ones."""
        return [check for check in self.checks if check.status == "failure"]


class Checkups(Result):
    """What `doctor --hosts` found on each host."""

    kind: Literal["checkups"] = "checkups"
    hosts: tuple[Checkup, ...]
