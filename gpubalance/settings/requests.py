"""What a measurement should do: the settings, and a request for each command that measures or
plans.
"""

from __future__ import annotations

import math
import re
from functools import partial
from pathlib import Path
from reprlib import repr as short_repr
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from gpubalance.settings.choices import AllReduce, Baseline, Gradients, Input, Precision, one_of
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.record import Bytes, Record, Room, Seconds, option
from gpubalance.settings.shares import Shares
from gpubalance.settings.summing import AS_USUAL, Summing
from gpubalance.settings.together import refuse_together

# What follows in a pipeline if windows of five timings don't settle the result.
_LONGEST_WINDOW_S = 10.0
_KNOWN = 0.005
_MOST_MICRO_BATCHES = 1024
# With two equal devices this makes the bubble 1/17 of a step.
_MICRO_BATCHES_A_DEVICE = 8
_PRECISIONS = (
    "tf32, TensorFlow's default: float32, multiplied in TF32 where the card has it; "
    "float32, which forbids TF32; mixed_float16 or mixed_bfloat16"
)

_EACH = "Probe each device, equal ones too. Default: of equal devices of a host one is probed."

_panels = ("Training", "Split", "Measuring", "Queue")
_training, _split, _measuring, _queueing = (partial(option, panel) for panel in _panels)
Name = Annotated[str, Field(max_length=4000)]  # the bound has pydantic refuse what is not UTF-8
Count = Annotated[int, Field(ge=1, le=10**9)]
Multiple = Annotated[int, Field(ge=1, le=10**6)]
Repeats = Annotated[int, Field(ge=1, le=10_000)]
WithinDay = Annotated[float, Field(gt=0, le=86_400)]  # seconds
WithinHour = Annotated[float, Field(gt=0, le=3600)]  # seconds


def _micro_batches(given: object) -> object:
    """The number that `off` and text stand for. Raises ValueError for anything that is not auto,
    off or a number.
    """
    number = (
        1
        if given == "off"
        else int(str(given))
        if re.fullmatch("[0-9]{1,5}", str(given))
        else given
    )
    if number != "auto" and number not in range(1, _MOST_MICRO_BATCHES + 1):
        raise ValueError(
            f"auto, off or a number from 1 to {_MOST_MICRO_BATCHES}, not {short_repr(given)}"
        )
    return number


Accumulate = Annotated[int | Literal["auto"], BeforeValidator(_micro_batches)]


class Settings(Record):
    """What, besides the devices and the split, decides how long a step takes. Recorded with every
    result.

    `model` is `probe`, `small`, a `keras.applications` name, `package.module:function` or
    `file.py:function`; empty in what a user asked for: the one that suits the devices. `data` is a
    function that provides samples, named like the last two; null for random samples.
    """

    model: Name = _training(
        "--model NAME",
        "probe (default on GPUs), small (if simulated), a keras.applications name, "
        "file.py:function, package.module:"
        "function or saved.keras.",
        "",
    )
    data: Name | None = _training(
        "--data NAME",
        "Your samples: a function, named as for --model, that gives a tf.data.Dataset, a "
        "PyDataset or arrays.",
    )
    precision: Precision = _training("--precision KIND", f"{_PRECISIONS}.", "tf32")
    xla: bool = _training("--xla/--no-xla", "Compile the forward and backward pass.", default=False)
    input: Input = _training(
        "--input PLACE",
        "Keep the samples on the device, or feed them from the host: device, host.",
        "device",
    )
    all_reduce: AllReduce = _training(
        "--all-reduce KIND", f"How gradients are summed: {one_of(AllReduce)}.", "auto"
    )
    pack_bytes: Bytes | None = _training(
        "--pack-bytes SIZE",
        "Gradients that are summed in one all-reduce, such as 4MiB; 0 is all of them. "
        "Default: what suits the link.",
    )
    gradients: Gradients = _training(
        "--gradients KIND",
        "Sum gradients in full, or send them as bf16: half the bytes, and not exact: full, bf16.",
        "full",
    )

    @property
    def summing(self) -> Summing:
        """How several devices sum their gradients."""
        return Summing(self.all_reduce, self.pack_bytes, self.gradients)

    @property
    def alone(self) -> Settings:
        """Those of a device alone, which does no all-reduce."""
        return self.model_copy(update=vars(AS_USUAL))


class Limits(Record):
    """What every measurement has: `time_limit_s` ends the command, `deadline_s` is the longest
    silence of a worker.

    Without a deadline it is one that suits the step.
    """

    time_limit_s: float | None = _measuring(
        "--time-limit S",
        "End after that many seconds, with what has been measured by then.",
        gt=0,
        le=1e7,
    )
    deadline_s: WithinDay | None = _measuring(
        "--deadline S",
        "End a worker that is silent for longer than this. Default: 30 times what such steps "
        "took, at least 60 s, and "
        "900 s for a first step.",
    )
    seed: int = _measuring("--seed N", "Seed of samples, weights and noise.", 0, ge=0, lt=2**31)


class Measuring(Limits):
    """How long and how exactly to measure: windows of `duration_s`, or, if that is null, each until
    it knows its step time within ± 0.5 %, for at most 10 s.

    More windows follow until the result is known within ± 1 %, up to 5/3 as many.
    """

    windows: Repeats = _measuring(
        "--windows N",
        "Windows to measure; up to 5/3 as many while the result is not known within ± 1 %.",
        3,
    )
    duration_s: WithinDay | None = _measuring(
        "--duration S",
        "Seconds that a window takes. Default: until its step time is known within ± 0.5 %, "
        "at most 10.",
    )
    baseline: Baseline = _measuring(
        "--baseline even|none",
        "Measure the even split too, in turns with this one, or not.",
        "even",
    )

    @property
    def max_windows(self) -> int:
        """The most windows to measure while the confidence interval is still too wide."""
        return math.ceil(self.windows * 5 / 3)

    @property
    def longest_s(self) -> float:
        """The seconds of a window, or the most of one that ends sooner."""
        return self.duration_s or _LONGEST_WINDOW_S

    @property
    def within(self) -> float | None:
        """The part to which a window must know its step time to end sooner; None if it
        never does.
        """
        return None if self.duration_s else _KNOWN


class Proof(Measuring):
    """How to measure what was found: a proof takes no longer than its verdict needs."""

    windows: Repeats = _measuring(
        "--windows N",
        "Windows of the proof; up to 5/3 as many while it is not known within ± 1 %.",
        2,
    )


class Tracing(Record):
    """A profiler trace of `steps` steady steps, written to `folder`/plugins/profile/`name`."""

    folder: str
    name: str
    steps: Annotated[int, Field(ge=1, le=1000)] = 10

    def of(self, device: Device) -> Tracing:
        """That of one device among several."""
        return self.model_copy(update={"name": f"{self.name}-{device.label.replace(':', '-')}"})


class Request(Record):
    """What is measured: the devices, in one order everywhere, and what is trained on them. `driver`
    is recorded.
    """

    devices: tuple[Device, ...]
    driver: Annotated[str | None, Field(exclude=True)] = None
    settings: Settings
    joint: JointProfile = JointProfile()
    tracing: Tracing | None = None


class RunRequest(Request):
    """A run of a split, whose batches are in the order of the devices.

    Raises UsageError for what the devices with samples can't do together.
    """

    split: Shares
    measuring: Measuring = Measuring()

    @model_validator(mode="after")
    def _can_be_run(self) -> RunRequest:
        used = [self.devices[number] for number in self.split.used]
        refuse_together(used, self.settings.all_reduce, self.devices)
        return self

    @property
    def without_idle(self) -> RunRequest:
        """The same run without the devices that have no samples."""
        devices = tuple(self.devices[i] for i in self.split.used)
        return self.model_copy(update={"devices": devices, "split": self.split.without_idle})


class IndependentRequest(Request):
    """Models that train at the same time, one a device: a batch and a model for each, in the
    devices' order.

    `settings.model` lists all their names, each once.
    """

    batches: tuple[Count, ...]
    models: tuple[str, ...]
    measuring: Measuring = Measuring()

    def settings_of(self, number: int) -> Settings:
        """The settings of one device, with its own model."""
        return self.settings.model_copy(update={"model": self.models[number]})


class Probing(Limits):
    """How a device is measured alone.

    With `max_batch` null the batch grows until memory is exhausted, or, without a memory limit,
    until throughput stops rising. `margin_bytes` of each device's memory are kept free. A batch
    size is measured until its step time is known as exactly as is needed, for at most 12 s; with
    `duration_s` for at least that long, and at most four times as long. Of equal devices the first
    is probed, with `each` all are.
    """

    max_batch: Count | None = _measuring(
        "--max-batch N", "Try no larger batch. Default: until memory is full."
    )
    batch_multiple: Multiple = _measuring(
        "--batch-multiple N",
        "Try only multiples of this; if memory holds none, all smaller batches.",
        8,
    )
    margin_bytes: Room = _measuring(
        "--margin SIZE", "Memory to keep free on each device, such as 512MiB.", 0
    )
    duration_s: WithinHour | None = _measuring(
        "--duration S",
        "Measure each batch size for at least this long, and at most 4 times as long. "
        "Default: until it is known well "
        "enough; see gpubalance guide probe.",
    )
    parallel: bool = _measuring(
        "--parallel",
        "Measure all devices at once, on hosts where they do not disturb each other.",
        default=False,
    )
    ahead: bool = _measuring(
        "--ahead/--no-ahead",
        "Start the next worker, which loads TensorFlow, before it is needed.",
        default=True,
    )
    each: bool = _measuring("--each", _EACH, default=False)


class ProbeRequest(Probing, Request):
    """A probe of each device alone. The run that follows needs `least_samples` of the
    user's data.
    """

    for_split: bool = False
    least_samples: Annotated[int, Field(ge=0)] = 0


class PlanRequest(Record):
    """What the split is for; null leaves the choice to the planner.

    `accumulate` is the most micro-batches that a device's batch may be divided into;
    `batch_multiple` null is the probe's. `margin_bytes` are kept free beyond what a joint run
    takes. `from_batch` is the global batch that the current learning rate suits. With
    `noise_scale`, the gradient noise scale in samples, goodput is maximised, not throughput.
    """

    global_batch: Count | None = _split(
        "--global-batch B",
        "Samples of all devices in one step, exactly. Default: whatever gives the most "
        "samples per second.",
    )
    max_global_batch: Count | None = _split("--max-global-batch B", "The largest global batch.")
    accumulate: Accumulate = _split(
        "--accumulate auto|off|N",
        "The most micro-batches of a device if its batch does not fit.",
        1,
        typed="off",
    )
    batch_multiple: Multiple | None = _split(
        "--batch-multiple N", "Make each batch a multiple of this. Default: the probe's."
    )
    margin_bytes: Room = _split(
        "--margin SIZE",
        "Memory to keep free on each device, beyond what a joint run needs, such as 512MiB.",
        0,
    )
    from_batch: Count | None = _split(
        "--from-batch B",
        "The global batch that your learning rate was tuned for. Default: the batch of "
        "--data, else the best device's "
        "best batch alone.",
    )
    noise_scale: Annotated[float, Field(gt=0, le=1e12)] | None = _split(
        "--noise-scale N|FILE",
        "Maximise goodput, what samples per second are worth in learning, by the gradient "
        "noise scale: in samples, or "
        "the file that split.monitor(noise=FILE) wrote. Default: maximise samples per second.",
    )
    sync_s: Seconds | None = _split(
        "--sync S",
        "Seconds of sync in a step, all but the slowest compute and update, as a run shows it.",
    )


class Rounds(Record):
    """How to find the split: in at most `rounds` rounds of `round_s` each, null for until it is
    known within ± 1 %.

    `fresh` probes again even if a probe of these devices and settings is stored, `each` even
    devices that are equal.
    """

    rounds: Repeats = _measuring("--rounds N", "Measure splits at most that many times.", 10)
    fresh: bool = _measuring(
        "--fresh",
        "Probe again, even if these devices were probed with these settings before.",
        default=False,
    )
    each: bool = _measuring("--each", _EACH, default=False)
    round_s: WithinHour | None = _measuring(
        "--round-duration S",
        "Seconds to measure each split that is tried. Default: until it is known within ± 1 "
        "%, up to 3 s.",
    )


class BalanceRequest(Rounds, Request):
    """The main job: what the split is for, and how to search for it. `measuring` is for the final
    run.

    Raises UsageError for what the devices can't do together.
    """

    plan: PlanRequest = PlanRequest()
    measuring: Measuring = Measuring()
    probe_s: WithinHour | None = None

    @model_validator(mode="after")
    def _can_be_run(self) -> BalanceRequest:
        refuse_together(self.devices, self.settings.all_reduce)
        return self

    @property
    def probe(self) -> ProbeRequest:
        """The probe to make if no stored one fits."""
        return ProbeRequest(
            devices=self.devices,
            driver=self.driver,
            settings=self.settings.alone,
            max_batch=self.plan.max_global_batch or self.plan.global_batch,
            batch_multiple=self.plan.batch_multiple
            or ProbeRequest.model_fields["batch_multiple"].default,
            duration_s=self.probe_s,
            deadline_s=self.measuring.deadline_s,
            seed=self.measuring.seed,
            least_samples=self.plan.global_batch or 0,
            for_split=len(self.devices) > 1,
            each=self.each,
        )


class Cutting(Rounds):
    """How to cut a model into stages, and what a step is.

    `micro_batch` null is the smallest that is nearly as fast as any, `micro_batches` null is eight
    for each device. `cuts` names the layers that begin a stage; without any the planner chooses the
    cuts. `margin_bytes` of each device's memory are kept free. With `force` the model is cut even
    if it is better off uncut.
    """

    micro_batch: Multiple | None = _split(
        "--micro-batch N",
        "Samples in a micro-batch. Default: the fewest that are within 5 % of the best.",
    )
    micro_batches: int | None = _split(
        "--micro-batches N",
        "Micro-batches in a step. Default: 8 a device.",
        ge=1,
        le=_MOST_MICRO_BATCHES,
    )
    cuts: tuple[str, ...] = _split(
        "--cuts LAYER…", "Cut before these layers, and nowhere else. Default: anywhere.", ()
    )
    margin_bytes: Room = _split(
        "--margin SIZE", "Memory to keep free on each device, such as 512MiB.", 0
    )
    force: bool = _split("--force", "Cut a model that is faster uncut, too.", default=False)
    rounds: Repeats = _measuring("--rounds N", "Measure cuts at most that many times.", 5)
    round_s: WithinHour = _measuring(
        "--round-duration S", "Seconds to measure each cut that is tried.", 3.0
    )


class LayersRequest(Cutting, Request):
    """A model to cut into stages over these devices and train as a pipeline of micro-batches."""

    measuring: Measuring = Measuring()

    @property
    def in_a_step(self) -> int:
        """Micro-batches in a step."""
        return self.micro_batches or _MICRO_BATCHES_A_DEVICE * len(self.devices)

    @property
    def uncut(self) -> BalanceRequest:
        """The batch split of the whole model over the same devices, with which the pipeline is
        compared.
        """
        return BalanceRequest(
            devices=self.devices,
            driver=self.driver,
            settings=self.settings,
            joint=self.joint,
            plan=PlanRequest(accumulate="auto", margin_bytes=self.margin_bytes),
            measuring=self.measuring,
            round_s=self.round_s,
            fresh=self.fresh,
            each=self.each,
        )


class Queueing(Record):
    """How a queue runs its commands: with `pull` each free device takes the next, however slow it
    is.

    Their output goes to files in `logs`; null for a folder of gpubalance's own. With `resume` those
    that ended well in an earlier run are not run again.
    """

    logs: Path | None = _queueing("--logs DIR", "Write what each command prints to NNN.log there.")
    resume: bool = _queueing(
        "--resume", "Run only what has not ended well in an earlier run.", default=False
    )
    pull: bool = _queueing(
        "--pull", "Start the next command wherever a device is free, however slow.", default=False
    )


class QueueRequest(Queueing):
    """Commands for a shell, each to be run on one of these devices. `source` is the file that they
    are from.
    """

    devices: tuple[Device, ...]
    commands: tuple[str, ...]
    source: str


# Of the commands that measure.
MeasureRequest = RunRequest | ProbeRequest | BalanceRequest | IndependentRequest | LayersRequest
