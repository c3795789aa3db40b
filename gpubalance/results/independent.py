"""The record of models that trained at the same time, one on each device."""

from __future__ import annotations

from typing import Annotated, Literal

from gpubalance.results.common import (
    Count,
    Environment,
    Interval,
    Number,
    OfModel,
    OfSplit,
    Part,
    Peak,
    Positive,
    Size,
    StepTime,
    Throughput,
    Warning_,
)
from gpubalance.results.probe import Failure
from gpubalance.results.timing import Telemetry
from gpubalance.settings.device import Device
from gpubalance.settings.record import Record, Shown


class OwnModel(Record):
    """One device with a model of its own, measured alone and at once with the others.

    `model` is the name given to `--model`. `contention` is the fraction of throughput lost at once,
    relative to alone. Null means not measured: the device failed, or no other was left to measure
    at once with. Telemetry and memory are of the measurement at once, `solo_telemetry` of the one
    alone. `input_wait_s` and `solo_input_wait_s` are how long a step waits for samples, at once and
    alone; null if the samples lie on the device.
    """

    device: Count
    model: str
    batch: Size
    solo_throughput: Annotated[Positive | None, Shown("alone", brief="alone")]
    throughput: Annotated[Positive | None, Shown(brief="at once")]
    contention: Annotated[Part | None, Shown(brief="contention")]
    contention_ci95: Annotated[Interval, Shown(unit="%")]
    solo_step_time_s: StepTime | None
    step_time_s: StepTime | None
    solo_input_wait_s: Annotated[Number | None, Shown("alone")] = None
    input_wait_s: Number | None = None
    memory_peak_bytes: Peak
    telemetry: Telemetry | None = None
    solo_telemetry: Telemetry | None = None
    failure: Failure | None = None


class OwnWindow(Record):
    """What one device gave in a window in which it trained a model of its own."""

    device: Device
    batch: Size
    step_time_s: StepTime
    throughput: Throughput
    memory_peak_bytes: Count | None
    telemetry: Telemetry | None


class HeldAgainst(OfSplit):
    """The best stored joint run of the same devices and settings."""

    created: str
    throughput: Throughput


class Independent(OfModel):
    """Each device trained a model of its own, alternately alone and at once with the others.

    `throughput` is the sum of what they gave at once, in the `overlap_s` seconds in which all were
    measured; `solo_sum` is the sum of what the same devices gave alone. `model` is null if their
    models differ.
    """

    kind: Literal["independent"] = "independent"
    environment: Environment
    replicas: tuple[OwnModel, ...]
    throughput: Throughput | None
    solo_sum: Annotated[Number | None, Shown("the same alone", "samples/s")]
    overlap_s: Annotated[Number, Shown("measured at once for", "s")]
    joint: HeldAgainst | None
    complete: bool
    warnings: tuple[Warning_, ...]

    @property
    def measured(self) -> tuple[OwnModel, ...]:
        """The devices that were measured at once, which `throughput` adds up."""
        return tuple(
            replica for replica in self.replicas if replica.throughput is not None
        )
