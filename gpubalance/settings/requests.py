"""What a measurement should do: the settings, and a request for each command that measures or plans."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from gpubalance.settings.choices import AllReduce, Baseline, Input, Precision, Schedule
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.record import Batch, Bytes, Record, Seconds
from gpubalance.settings.shares import Shares

# What follows in a pipeline if windows of five timings don't settle the result.
_LONG_WINDOWS = 5
_LONG_WINDOW_S = 10.0
_KNOWN = 0.005
# With two equal devices this makes the bubble 1/17 of a step.
_MICRO_BATCHES_A_DEVICE = 8


class Settings(Record):
    """What, besides the devices and the split, decides how long a step takes. Recorded with every result.

    `model` is `probe`, `small`, a `keras.applications` name, `package.module:function` or `file.py:function`. `data` is
    a function that provides samples, named like the last two; null for random samples.
    """

    model: str
    data: str | None = None
    precision: Precision = "float32"
    xla: bool = False
    input: Input = "device"
    all_reduce: AllReduce = "auto"


class Measuring(Record):
    """How long and how exactly to measure: windows of `duration_s`, or, if that is null, each until it knows its step
    time within ± 0.5 %, for at most 10 s.

    More windows follow until the result is known within ± 1 %, up to 5/3 as many. `deadline_s` is the longest silence
    of a worker, null for one that suits the step; `time_limit_s` ends the command.
    """

    windows: Annotated[int, Field(ge=1, le=10_000)] = 3
    duration_s: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] | None = None
    baseline: Baseline = "even"
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    deadline_s: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] | None = None
    time_limit_s: Annotated[float, Field(gt=0, le=1e7, allow_inf_nan=False)] | None = None

    @property
    def max_windows(self) -> int:
        """The most windows to measure while the confidence interval is still too wide."""
        return math.ceil(self.windows * 5 / 3)

    @property
    def longest_s(self) -> float:
        """The seconds of a window, or the most of one that ends sooner."""
        return self.duration_s or _LONG_WINDOW_S

    @property
    def within(self) -> float | None:
        """The part to which a window must know its step time to end sooner; None if it never does."""
        return None if self.duration_s else _KNOWN

    def window_s(self, number: int) -> float:
        """The shortest time that window `number` lasts; the first is 1."""
        if self.duration_s is not None:
            return self.duration_s
        longer = number - self.windows  # a few more timings often suffice
        return 0.0 if longer < 1 else _LONG_WINDOW_S / 2 ** max(0, 3 - longer)


class Tracing(Record):
    """A profiler trace of `steps` steady steps, written to `folder`/plugins/profile/`name`."""

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
        """The same run without the devices that have no samples."""
        devices = tuple(self.devices[i] for i in self.split.used)
        return self.model_copy(update={"devices": devices, "split": self.split.of_used})


class IndependentRequest(Record):
    """Models that train at the same time, one a device: a batch and a model for each, in the devices' order.

    `settings.model` lists all their names, each once.
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
        """The settings of one device, with its own model."""
        return self.settings.model_copy(update={"model": self.models[number]})


class ProbeRequest(Record):
    """A probe: the devices, each to be measured alone, and how.

    With `max_batch` null the batch grows until memory is exhausted, or, without a memory limit, until throughput stops
    rising. `margin_bytes` of each device's memory are kept free. A batch size is measured until its step time is known
    as exactly as is needed, for at most 12 s; with `duration_s` for at least that long, and at most four times as long.
    `deadline_s` is the longest silence of a worker, null for one that suits the step. The run that follows needs
    `least_samples` of the user's data.
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
    for_split: bool = False
    least_samples: Annotated[int, Field(ge=0)] = 0
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    tracing: Tracing | None = None


class PlanRequest(Record):
    """What the split is for; null leaves the choice to the planner.

    `accumulate` is the most micro-batches that a device's batch may be divided into; `batch_multiple` null is the
    probe's. `margin_bytes` are kept free beyond what a joint run takes. `from_batch` is the global batch that the
    current learning rate suits. With `noise_scale`, the gradient noise scale in samples, goodput is maximised, not
    throughput.
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
    """The main job: the devices, what is trained on them, what the split is for, and how to search for it.

    Splits are measured in at most `rounds` rounds of `round_s` each, null for until they are known within ± 1 %;
    `measuring` is for the final run. `fresh` probes again even if a probe of these devices and settings is stored.
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
        """The probe to make if no stored one fits."""
        return ProbeRequest(
            devices=self.devices,
            settings=self.settings.model_copy(update={"all_reduce": "auto"}),
            max_batch=self.plan.max_global_batch or self.plan.global_batch,
            batch_multiple=self.plan.batch_multiple or ProbeRequest.model_fields["batch_multiple"].default,
            duration_s=self.probe_s,
            deadline_s=self.measuring.deadline_s,
            seed=self.measuring.seed,
            least_samples=self.plan.global_batch or 0,
            for_split=len(self.devices) > 1,
        )


class LayersRequest(Record):
    """A model to cut into stages over these devices and train as a pipeline of micro-batches.

    `micro_batch` null is the smallest that is nearly as fast as any, `micro_batches` null is eight for each device.
    `cuts` names the layers that begin a stage; without any the planner chooses the cuts. `margin_bytes` of each
    device's memory are kept free. With `force` the model is cut even if it is better off uncut.
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
        """The batch split of the whole model over the same devices, with which the pipeline is compared."""
        return BalanceRequest(
            devices=self.devices,
            settings=self.settings,
            joint=self.joint,
            plan=PlanRequest(accumulate="auto", margin_bytes=self.margin_bytes),
            measuring=self.measuring,
            round_s=self.round_s,
            fresh=self.fresh,
        )
