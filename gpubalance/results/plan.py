"""The record of a plan: a split, what is predicted of it, and, after `balance`, what it gave."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gpubalance.planning.problem import Binds
from gpubalance.results.common import (
    SCHEMA_VERSION,
    Count,
    Environment,
    Model,
    Number,
    Positive,
    Samples,
    Warning_,
)
from gpubalance.results.run import Measurement, Run
from gpubalance.settings.device import Device
from gpubalance.settings.record import Record
from gpubalance.settings.requests import Settings


class Share(Record):
    """One device's part of the split. `batch` samples in micro-batches of `micro_batch`, 0 where it is left out.

    `limit` is the largest micro-batch that was allowed for, `binds` why it has no more samples: "max batch" where none
    larger was probed.
    """

    device: Count
    batch: Samples
    micro_batch: Samples
    limit: Count
    compute_s: Number
    utilisation: Number
    binds: Binds | Literal["max batch"]


class EvenPrediction(Record):
    """The even split of the same global batch, or the largest equal shares that fit."""

    batches: tuple[Samples, ...]
    step_time_s: Positive
    throughput: Positive


class Predicted(Record):
    """By the step-time models. `scaling_efficiency` is of the solo sum of the devices in use."""

    step_time_s: Positive
    throughput: Positive
    sync_s: Number
    imbalance: Number
    even: EvenPrediction | None
    speedup_over_even: Number | None
    solo_sum: Number | None
    scaling_efficiency: Number | None


class LeftOut(Record):
    """A device without samples. `gain` is by what part throughput would change with it, or null."""

    device: Count
    gain: Number | None


class LearningRate(Record):
    """By what to multiply a learning rate that suits `from_batch`: linear for SGD, square root for Adam."""

    from_batch: Samples
    to_batch: Samples
    linear: Number
    square_root: Number


class Round(Record):
    """A split that `balance` tried; `measured` is null where it ran out of memory, which `outcome` says."""

    number: Count
    batches: tuple[Samples, ...]
    micro_batches: tuple[Samples, ...]
    predicted_throughput: Number
    outcome: Literal["measured", "oom"]
    measured: Measurement | None


class SoloGap(Record):
    """Why the run gives less than the devices alone, in samples per second: see `planning.gap.Gap`.

    `left_out`, `batch_sizes`, `slowdown` (of each device), `imbalance`, `sync` and `throughput` sum to `solo_sum`.
    """

    solo_sum: Positive
    left_out: Number
    batch_sizes: Number
    slowdown: tuple[Number, ...]
    imbalance: Number
    sync: Number
    throughput: Number


class Balance(Record):
    """How a plan came to be: every split that was tried, and the run of the one it ended with.

    `run` is null where it was ended before that split was proven.
    """

    rounds: tuple[Round, ...]
    run: Run | None
    solo_gap: SoloGap | None


class Plan(Record):
    """A split for these devices, this model and these settings; a device is known by its UUID.

    `sync_s` is null where it was not known and taken for 0. `probed` is when the probe was made that it stands on,
    `environment` where.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["plan"] = "plan"
    created: str
    probed: str
    settings: Settings
    environment: Environment | None = None
    model: Model | None
    devices: tuple[Device, ...]
    batches: tuple[Samples, ...]
    micro_batches: tuple[Samples, ...]
    global_batch: Count
    batch_multiple: Annotated[Samples, Field(ge=1)]
    margin_bytes: Count
    sync_s: Annotated[Number, Field(ge=0)] | None
    shares: tuple[Share, ...]
    predicted: Predicted
    left_out: tuple[LeftOut, ...]
    learning_rate: LearningRate | None
    warnings: tuple[Warning_, ...]
    balance: Balance | None = None
