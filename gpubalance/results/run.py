"""The record of a run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from gpubalance.config import Device, Record, Settings
from gpubalance.results.common import (
    SCHEMA_VERSION,
    Count,
    Environment,
    Interval,
    Model,
    Number,
    Positive,
    Samples,
    StepTime,
    Throughput,
    Warning_,
    check_places,
    check_split,
)
from gpubalance.telemetry import Telemetry


class Replica(Record):
    """One device's part in a step. It takes its batch in micro-batches; where they are equal, in one.

    compute_s + wait_s + the measurement's sync_s + input_wait_s − excess_s is the step time.
    """

    device: Count
    batch: Annotated[Samples, Field(ge=1)]
    micro_batch: Annotated[Samples, Field(ge=1)]
    throughput: Number
    compute_s: Number
    wait_s: Number
    utilisation: Number
    memory_peak_bytes: Count | None
    telemetry: Telemetry | None = None


class Measurement(Record):
    """A split, measured. `device` in replicas counts the result's devices, `batches` are the replicas', in their order.

    `excess_s` is by how much the slowest compute of stamped steps was longer than a whole step of the others: 0
    unless stamping disturbs.
    """

    batches: tuple[Samples, ...]
    micro_batches: tuple[Samples, ...]
    global_batch: Count
    step_time_s: StepTime
    throughput: Throughput
    replicas: tuple[Replica, ...]
    sync_s: Number
    input_wait_s: Number
    excess_s: Number
    imbalance: Number

    @model_validator(mode="after")
    def _is_of_its_replicas(self) -> Measurement:
        check_split(len(self.replicas), self.batches, self.micro_batches)
        return self


class SoloBest(Record):
    """The best that one device gave alone, from its latest probe."""

    device: Count
    batch: Samples
    throughput: Positive


class Baselines(Record):
    """What a run is held against. `even` was measured in turns with it; the solo figures come from a probe."""

    even: Measurement | None
    solo_best: tuple[SoloBest, ...] | None
    solo_sum: Number | None


class Run(Record):
    """A split, run for real."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["run"] = "run"
    created: str
    settings: Settings
    environment: Environment
    model: Model
    devices: Annotated[tuple[Device, ...], Field(min_length=1)]
    batches: tuple[Samples, ...]
    micro_batches: tuple[Samples, ...]
    global_batch: Count
    warmup_steps: Count
    steps: Count
    step_time_s: StepTime
    throughput: Throughput
    replicas: Annotated[tuple[Replica, ...], Field(min_length=1)]
    sync_s: Number
    input_wait_s: Number
    excess_s: Number
    stamp_cost: Number | None
    baselines: Baselines
    speedup_over_even: Number | None
    speedup_ci95: Interval
    scaling_efficiency: Number | None
    imbalance: Number
    complete: bool
    warnings: tuple[Warning_, ...]

    @model_validator(mode="after")
    def _is_of_its_devices(self) -> Run:
        check_split(len(self.devices), self.batches, self.micro_batches)
        check_places(self.devices, [replica.device for replica in self.replicas], "replicas")
        check_places(self.devices, [best.device for best in self.baselines.solo_best or ()], "baselines.solo_best")
        even = self.baselines.even
        if even is not None:
            check_places(self.devices, [replica.device for replica in even.replicas], "baselines.even.replicas")
            if len(even.replicas) != len(self.replicas):
                raise ValueError("baselines.even.replicas: they are not those of the run")
        return self
