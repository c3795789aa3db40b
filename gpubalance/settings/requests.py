"""What a measurement is asked to do: the settings, and a request for each command that measures or plans."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from gpubalance.settings.choices import AllReduce, Baseline, Input, Precision, Schedule
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.record import Batch, Bytes, Record, Seconds
from gpubalance.settings.shares import Shares

# Where windows of five timings don't say enough.
_LONG_WINDOWS = 5
_LONG_WINDOW_S = 10.0
# With two devices alike the bubble is 1/17 of a step then.
_MICRO_BATCHES_A_DEVICE = 8


class Settings(Record):
    """What, besides the devices and the split, decides how long a step takes. Recorded with every result.

    `model` is `probe`, `small`, a `keras.applications` name, `package.module:function` or `file.py:function`. `data` is
    a function that gives samples, named like the last two; null for random ones.
    """

    model: str
    data: str | None = None
    precision: Precision = "float32"
    xla: bool = False
    input: Input = "device"
    all_reduce: AllReduce = "auto"


class Measuring(Record):
    """How long and how exactly to measure: windows of `duration_s`, null for windows of five timings.

    There are more while the result is not known within ±1 %: up to 5/3 as many, or five of up to 10 s after short ones.
    `deadline_s` is the longest silence of a worker, null for what suits the step; `time_limit_s` of the whole command.
    """

    windows: Annotated[int, Field(ge=1, le=10_000)] = 3
    duration_s: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] | None = 10.0
    baseline: Baseline = "even"
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    deadline_s: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] | None = None
    time_limit_s: Annotated[float, Field(gt=0, le=1e7, allow_inf_nan=False)] | None = None

    @property
    def max_windows(self) -> int:
        """The cap while the confidence interval is still too wide."""
        return self.windows + _LONG_WINDOWS if self.duration_s is None else math.ceil(self.windows * 5 / 3)

    def window_s(self, number: int) -> float:
        """How long that window lasts at least; the first is 1."""
        if self.duration_s is not None:
            return self.duration_s
        longer = number - self.windows  # a few more timings are often enough
        return 0.0 if longer < 1 else _LONG_WINDOW_S / 2 ** max(0, 3 - longer)


class Tracing(Record):
    """A profiler trace of so many steady steps, put into `folder`/plugins/profile/`name`."""

    folder: str
    name: str
    steps: Annotated[int, Field(ge=1, le=1000)] = 10


class RunRequest(Record):
    """A run: the devices, the split in the same order, and how to measure."""

    devices: tuple[Device, ...]
    split: Shares
    settings: Settings
    joint: JointProfile = JointProfile()
    measuring: Measuring = Measuring()
    tracing: Tracing | None = None

    @model_validator(mode="after")
    def _one_batch_a_device(self) -> RunRequest:
        if len(self.devices) != len(self.split.batches):
            raise ValueError("a run needs one batch a device")
        return self

    @property
    def of_used(self) -> RunRequest:
        """The same run of the devices that have samples."""
        devices = tuple(self.devices[i] for i in self.split.used)
        return self.model_copy(update={"devices": devices, "split": self.split.of_used})


class IndependentRequest(Record):
    """Models that train at the same time, one a device: a batch and a model each, in the devices' order.

    The `model` of `settings` names them all, once each.
    """

    devices: tuple[Device, ...]
    batches: tuple[Annotated[int, Field(ge=1, le=10**9)], ...]
    models: tuple[str, ...]
    settings: Settings
    joint: JointProfile = JointProfile()
    measuring: Measuring = Measuring()
    tracing: Tracing | None = None

    @model_validator(mode="after")
    def _one_of_each_a_device(self) -> IndependentRequest:
        if not len(self.devices) == len(self.batches) == len(self.models):
            raise ValueError("a batch and a model a device are needed")
        return self

    def settings_of(self, number: int) -> Settings:
        """Those of one device."""
        return self.settings.model_copy(update={"model": self.models[number]})


class ProbeRequest(Record):
    """A probe: the devices, each to be measured alone, and how.

    `max_batch` null goes on until memory ends; where there is no limit of memory, until throughput rises no more.
    `margin_bytes` of each device's memory are kept free. A batch size is measured until its step time is known as
    exactly as is wanted of it, for 12 s at most; with `duration_s` at least that long, and four times that at most.
    `deadline_s` is the longest silence of a worker, null for what suits the step. `least_samples` are wanted of the
    user's data for the run that follows.
    """

    devices: tuple[Device, ...]
    settings: Settings
    max_batch: Annotated[int, Field(ge=1, le=10**9)] | None = None
    batch_multiple: Annotated[int, Field(ge=1, le=10**6)] = 8
    margin_bytes: Bytes = 0
    duration_s: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] | None = None
    deadline_s: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] | None = None
    time_limit_s: Annotated[float, Field(gt=0, le=1e7, allow_inf_nan=False)] | None = None
    parallel: bool = False
    ahead: bool = True
    least_samples: Annotated[int, Field(ge=0)] = 0
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    tracing: Tracing | None = None


class PlanRequest(Record):
    """What a split is wanted for; null leaves it to the planner.

    `accumulate` is the most micro-batches a device's batch may be done in; `batch_multiple` null is the probe's.
    `margin_bytes` are kept free beside what a joint run takes. `from_batch` is the global batch that the learning rate
    suits so far. With `noise_scale`, the gradient noise scale in samples, goodput is maximised, not throughput.
    """

    global_batch: Batch | None = None
    max_global_batch: Batch | None = None
    accumulate: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] = 1
    batch_multiple: Annotated[int, Field(ge=1, le=10**6)] | None = None
    margin_bytes: Bytes = 0
    sync_s: Seconds | None = None
    from_batch: Annotated[int, Field(ge=1)] | None = None
    noise_scale: Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)] | None = None


class BalanceRequest(Record):
    """The main job: the devices, what is trained on them, what split is wanted, and how it is looked for.

    `rounds` is how often splits are measured at most, `round_s` how long each time, null for until it is known within
    ±1 %; `measuring` is of the last run.
    `fresh` makes a new probe where one of these devices and settings is kept.
    """

    devices: tuple[Device, ...]
    settings: Settings
    joint: JointProfile = JointProfile()
    plan: PlanRequest = PlanRequest()
    measuring: Measuring = Measuring()
    probe_s: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] | None = None
    round_s: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] | None = None
    rounds: Annotated[int, Field(ge=1, le=100)] = 10
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
            deadline_s=self.measuring.deadline_s,
            seed=self.measuring.seed,
            least_samples=self.plan.global_batch or 0,
        )


class LayersRequest(Record):
    """A model to be cut into stages over these devices, and trained as a pipeline of micro-batches.

    `micro_batch` null is the smallest that is nearly as fast as any, `micro_batches` null eight for each device. `cuts`
    are names of layers, to cut before each of them; none leaves the cuts to the planner. `margin_bytes` of each
    device's memory are kept free. A model that is better off uncut is cut all the same with `force`.
    """

    devices: tuple[Device, ...]
    settings: Settings
    joint: JointProfile = JointProfile()
    micro_batch: Annotated[int, Field(ge=1, le=10**6)] | None = None
    micro_batches: Annotated[int, Field(ge=1, le=1024)] | None = None
    cuts: tuple[str, ...] = ()
    schedule: Schedule = "1f1b"
    margin_bytes: Bytes = 0
    force: bool = False
    measuring: Measuring = Measuring()
    round_s: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] = 3.0
    rounds: Annotated[int, Field(ge=1, le=100)] = 5
    fresh: bool = False
    tracing: None = None

    @property
    def in_a_step(self) -> int:
        """Micro-batches in a step."""
        return self.micro_batches or _MICRO_BATCHES_A_DEVICE * len(self.devices)

    @property
    def uncut(self) -> BalanceRequest:
        """The batch split of the whole model over the same devices, which layers are held against."""
        return BalanceRequest(
            devices=self.devices,
            settings=self.settings,
            joint=self.joint,
            plan=PlanRequest(accumulate="auto", margin_bytes=self.margin_bytes),
            measuring=self.measuring,
            round_s=self.round_s,
            fresh=self.fresh,
        )
