"""The records of a result, as they stand in its file. The names are a contract: see the README.

schema_version 1: the first.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import PlainSerializer

from gpubalance.config import Device, Record, Settings

SCHEMA_VERSION: Literal[1] = 1

# Nanoseconds are far below what any of it is good for, and 17 digits a number make a file that nobody can read.
Number = Annotated[float, PlainSerializer(lambda x: float(f"{x:.7g}"), return_type=float)]
Interval = tuple[Number, Number] | None


class Warning_(Record):
    """Something a reader must know of the result: a code to search for, what it is, and what to do about it."""

    code: str
    message: str
    next: str


class StepTime(Record):
    """Seconds a step. A sample is the mean of `steps_per_sample` consecutive steps that were timed as one."""

    median: Number
    mad: Number
    ci95: Interval
    steps_per_sample: int
    samples: tuple[Number, ...]


class Throughput(Record):
    """Samples per second: the global batch over the step time."""

    median: Number
    ci95: Interval


class Replica(Record):
    """One device's part in a step.

    compute_s + wait_s + the measurement's sync_s + input_wait_s − excess_s is the step time.
    """

    device: int
    batch: int
    throughput: Number
    compute_s: Number
    wait_s: Number
    utilisation: Number
    memory_peak_bytes: int | None
    telemetry: dict[str, Any] | None = None


class Measurement(Record):
    """A split, measured. `device` in replicas counts the result's devices, `batches` are the replicas', in their order.

    `excess_s` is by how much the slowest compute of stamped steps was longer than a whole step of the others: 0
    unless stamping disturbs.
    """

    batches: tuple[int, ...]
    global_batch: int
    step_time_s: StepTime
    throughput: Throughput
    replicas: tuple[Replica, ...]
    sync_s: Number
    input_wait_s: Number
    excess_s: Number
    imbalance: Number


class SoloBest(Record):
    """The best that one device gave alone, from its latest probe."""

    device: int
    batch: int
    throughput: Number


class Baselines(Record):
    """What a run is held against. `even` was measured in turns with it; the solo figures come from a probe."""

    even: Measurement | None
    solo_best: tuple[SoloBest, ...] | None
    solo_sum: Number | None


class Environment(Record):
    """The software and machine behind a figure: an allow-list, nothing personal."""

    gpubalance: str
    python: str
    platform: str
    cpu: str
    cpu_count: int
    tensorflow: str
    keras: str
    cuda: str | None
    cudnn: str | None
    driver: str | None


class Model(Record):
    """What was trained; `gradient_bytes` is what every all-reduce moves."""

    name: str
    parameters: int
    gradient_bytes: int


class Run(Record):
    """A split, run for real."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["run"] = "run"
    created: str
    settings: Settings
    environment: Environment
    model: Model
    devices: tuple[Device, ...]
    batches: tuple[int, ...]
    global_batch: int
    warmup_steps: int
    steps: int
    step_time_s: StepTime
    throughput: Throughput
    replicas: tuple[Replica, ...]
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
