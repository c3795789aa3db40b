"""What a measurement is asked to do: settings, profiles and splits. Frozen, and validated where they are made."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from gpubalance.choices import AllReduce, Baseline, Input, Precision
from gpubalance.units import parse_bytes

Bytes = Annotated[int, BeforeValidator(parse_bytes)]
Seconds = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
Batch = Annotated[int, Field(ge=0, le=10**9, strict=True)]


class Record(BaseModel):
    """A frozen record that refuses what it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Settings(Record):
    """What, besides the devices and the split, decides how long a step takes. Recorded with every result.

    `model` is `probe`, `small`, a `keras.applications` name, `package.module:function` or `file.py:function`.
    """

    model: str
    precision: Precision = "float32"
    xla: bool = False
    input: Input = "device"
    all_reduce: AllReduce = "auto"


class DriftPoint(Record):
    """From second `from_s` of a measurement on, compute times are multiplied by `factor`."""

    from_s: Seconds
    factor: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]


def _drift(points: object) -> object:
    """A profile writes `[[20.0, 1.4]]`, a message between processes the records."""
    if not isinstance(points, (list, tuple)):
        return points
    named = []
    for point in points:
        if isinstance(point, (list, tuple)):
            if len(point) != 2:
                raise ValueError("each point of drift is [from_s, factor]")
            point = {"from_s": point[0], "factor": point[1]}
        named.append(point)
    return named


class DeviceProfile(Record):
    """How a simulated device behaves: a step's compute of b samples takes alpha_s + beta_s · b seconds.

    Its memory is base_memory + b · memory_per_sample bytes (plus the joint run's extra) and may not pass `memory`.
    Without `memory` there is no limit. `noise` is the relative standard deviation of a step's compute time.
    """

    name: Annotated[str, Field(min_length=1, max_length=200)]
    alpha_s: Seconds
    beta_s: Seconds
    memory: Annotated[Bytes, Field(gt=0)] | None = None
    base_memory: Bytes = 0
    memory_per_sample: Bytes = 0
    noise: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0
    drift: Annotated[tuple[DriftPoint, ...], BeforeValidator(_drift)] = ()

    def memory_at(self, batch: int, extra: int = 0) -> int:
        """Bytes that a step of `batch` samples needs; `extra` is what a joint run adds."""
        return self.base_memory + extra + batch * self.memory_per_sample

    def drift_at(self, elapsed_s: float) -> float:
        """Factor on the compute time `elapsed_s` after the measurement began."""
        factor = 1.0
        for point in self.drift:
            if elapsed_s >= point.from_s:
                factor = point.factor
        return factor

    @model_validator(mode="after")
    def _drift_is_ordered(self) -> DeviceProfile:
        times = [point.from_s for point in self.drift]
        if times != sorted(times):
            raise ValueError("drift: its points must be in order of time")
        return self


class JointProfile(Record):
    """What a joint run of simulated devices adds: seconds of sync a step, and bytes on every device."""

    sync_s: Seconds = 0.0
    extra_memory: Bytes = 0


class Device(Record):
    """One GPU or one simulated device, as every result names it.

    `profile` is null on a GPU and on a plain CPU device: then nothing is paced or limited.
    """

    index: Annotated[int, Field(ge=0)]
    uuid: str
    name: str
    memory_bytes: int | None
    simulated: bool
    bus_id: str | None = None
    profile: DeviceProfile | None = None

    @property
    def label(self) -> str:
        """`GPU:0`, the name that users know from TensorFlow and the tutorial; `CPU:0` for a plain CPU device."""
        return f"{'CPU' if self.simulated and self.profile is None else 'GPU'}:{self.index}"


class Measuring(Record):
    """How long and how exactly to measure."""

    windows: Annotated[int, Field(ge=1, le=10_000)] = 3
    duration_s: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] = 10.0
    baseline: Baseline = "even"
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0

    @property
    def max_windows(self) -> int:
        """The cap while the confidence interval is still too wide."""
        return math.ceil(self.windows * 5 / 3)


class Tracing(Record):
    """A profiler trace of so many steady steps, put into `folder`/plugins/profile/`name`."""

    folder: str
    name: str
    steps: Annotated[int, Field(ge=1, le=1000)] = 10


class RunRequest(Record):
    """A run: the devices that get samples, their batches in the same order, and how to measure.

    A device takes its batch in micro-batches of its size in `micro_batches`; null, or where it is the batch: in one.
    """

    devices: tuple[Device, ...]
    batches: tuple[Batch, ...]
    micro_batches: tuple[Batch, ...] | None = None
    settings: Settings
    joint: JointProfile = JointProfile()
    measuring: Measuring = Measuring()
    tracing: Tracing | None = None

    @model_validator(mode="after")
    def _one_batch_a_device(self) -> RunRequest:
        if len(self.devices) != len(self.batches) or not self.devices:
            raise ValueError("a run needs at least one device, and one batch a device")
        if not any(self.batches):
            raise ValueError("a run needs at least one device with a batch above 0")
        return self

    @model_validator(mode="after")
    def _micro_batches_divide(self) -> RunRequest:
        micro_batches = self.batches if self.micro_batches is None else self.micro_batches
        if len(micro_batches) != len(self.batches):
            raise ValueError("a run needs one micro-batch a device")
        if not all(m == b or (0 < m < b and b % m == 0) for b, m in zip(self.batches, micro_batches, strict=True)):
            raise ValueError("each micro-batch must divide its device's batch")
        return self

    @property
    def at_a_time(self) -> tuple[int, ...]:
        """How many samples each device has in its memory: its micro-batch, or all of its batch."""
        return self.batches if self.micro_batches is None else self.micro_batches


class ProbeRequest(Record):
    """A probe: the devices, each to be measured alone, and how.

    `max_batch` null goes on until memory ends; where there is no limit of memory, until throughput rises no more.
    `margin_bytes` of each device's memory are kept free. A batch size is measured for `duration_s`, up to four times
    that while it is not known precisely. `deadline_s` is the longest silence of a child, null for what suits the step.
    """

    devices: tuple[Device, ...]
    settings: Settings
    max_batch: Annotated[int, Field(ge=1, le=10**9)] | None = None
    batch_multiple: Annotated[int, Field(ge=1, le=10**6)] = 8
    margin_bytes: Bytes = 0
    duration_s: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] = 3.0
    deadline_s: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] | None = None
    time_limit_s: Annotated[float, Field(gt=0, le=1e7, allow_inf_nan=False)] | None = None
    parallel: bool = False
    ahead: bool = True
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    tracing: Tracing | None = None


class PlanRequest(Record):
    """What a split is wanted for; null leaves it to the planner.

    `accumulate` is the most micro-batches a device's batch may be done in; `batch_multiple` null is the probe's.
    `margin_bytes` are kept free beside what a joint run takes. `from_batch` is the global batch that the learning rate
    suits so far.
    """

    global_batch: Batch | None = None
    max_global_batch: Batch | None = None
    accumulate: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] = "auto"
    batch_multiple: Annotated[int, Field(ge=1, le=10**6)] | None = None
    margin_bytes: Bytes = 0
    sync_s: Seconds | None = None
    from_batch: Annotated[int, Field(ge=1)] | None = None


class BalanceRequest(Record):
    """The main job: the devices, what is trained on them, what split is wanted, and how it is looked for.

    `rounds` is the most splits that are tried, `round_s` how long one is measured; `measuring` is of the last run.
    `fresh` makes a new probe where one of these devices and settings is kept.
    """

    devices: tuple[Device, ...]
    settings: Settings
    joint: JointProfile = JointProfile()
    plan: PlanRequest = PlanRequest()
    measuring: Measuring = Measuring()
    probe_s: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] = 3.0
    round_s: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] = 3.0
    rounds: Annotated[int, Field(ge=1, le=100)] = 5
    fresh: bool = False
    tracing: Tracing | None = None

    @property
    def probe(self) -> ProbeRequest:
        """What is probed where no probe is kept."""
        return ProbeRequest(
            devices=self.devices,
            settings=self.settings.model_copy(update={"all_reduce": "auto"}),
            max_batch=self.plan.max_global_batch or self.plan.global_batch,
            batch_multiple=self.plan.batch_multiple or ProbeRequest.model_fields["batch_multiple"].default,
            duration_s=self.probe_s,
            seed=self.measuring.seed,
        )
