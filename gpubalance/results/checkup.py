"""The records of `doctor` and `check`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gpubalance.results.common import (
    LocalLayers,
    Model,
    Number,
    Refusal,
    Result,
    Warning_,
)
from gpubalance.settings.device import Device, Host
from gpubalance.settings.record import Record
from gpubalance.settings.settings import Settings

Status = Literal["ok", "warning", "failure", "skipped"]
# A global batch might have so many samples: data with fewer limits it
FEW_SAMPLES = 8192


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


class ModelCheck(Result):
    """What the check of a model and its data found, before anything is measured.

    `own_batch` is the number of samples in the batches of the user's data, `samples` that of an
    epoch; null if unknown. `refused` is why a split can't train the model, null if it can.
    `compiled_with` is the optimizer and loss of a user's model that is not compiled, null of one
    that is.
    """

    kind: Literal["check"] = "check"
    settings: Settings
    model: Model
    own_batch: Annotated[int, Field(ge=1)] | None
    samples: Annotated[int, Field(ge=0)] | None = None
    refused: Refusal | None
    local_layers: LocalLayers
    compiled_with: str | None
    warnings: tuple[Warning_, ...]


def few_samples_text(samples: int) -> str:
    """`200 samples in all, so a global batch has at most 200`."""
    return f"{samples:,} samples in all, so a global batch has at most {samples:,}"
