"""What the commands that measure are asked to do: a request each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from gpubalance.errors import UsageError
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.choices import AllReduce
from gpubalance.settings.device import Device, JointProfile, hosts_of
from gpubalance.settings.measuring import (
    USUAL_MULTIPLE,
    Measuring,
    Probing,
    Tracing,
    refuse_unknown,
)
from gpubalance.settings.planning import Cutting, PlanRequest, Rounds
from gpubalance.settings.record import (
    Count,
    Record,
    WithinDay,
    WithinHour,
    launching_option,
    queue_option,
)
from gpubalance.settings.settings import Settings

# With two equal devices this makes the bubble 1/17 of a step.
_MICRO_BATCHES_A_DEVICE = 8


class Request(Record):
    """What is measured: the devices, in one order everywhere, and what is trained on them."""

    devices: tuple[Device, ...]
    driver: Annotated[str | None, Field(exclude=True)] = None
    settings: Settings
    joint: JointProfile = JointProfile()
    tracing: Tracing | None = None


class RunRequest(Request):
    """A run of a split, whose batches are in the order of the devices.

    Raises UsageError for what the devices with samples can't do together.
    """

    split: BatchSplit
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
        return self.model_copy(
            update={"devices": devices, "split": self.split.without_idle}
        )


class IndependentRequest(Request):
    """Models that train at the same time, one a device, in the devices' order.

    `settings.model` lists all their names, each once.
    """

    batches: tuple[Count, ...]
    models: tuple[str, ...]
    measuring: Measuring = Measuring()

    def settings_of(self, number: int) -> Settings:
        """The settings of one device, with its own model."""
        return self.settings.model_copy(update={"model": self.models[number]})


class ProbeRequest(Probing, Request):
    """A probe of each device alone.

    The run that follows needs `least_samples` of the user's data. One `for_split` measures as much
    as a balance needs: its rounds measure again where it matters.
    """

    for_split: bool = False
    least_samples: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _has_these_devices(self) -> ProbeRequest:
        refuse_unknown(self.margin_bytes, self.devices)
        return self


class BalanceRequest(Rounds, Request):
    """What the split is for, and how to search for it; `measuring` is for the final run.

    Raises UsageError for what the devices can't do together.
    """

    plan: PlanRequest = PlanRequest()
    measuring: Measuring = Measuring()
    probe_s: WithinHour | None = None

    @model_validator(mode="after")
    def _can_be_run(self) -> BalanceRequest:
        refuse_together(self.devices, self.settings.all_reduce)
        refuse_unknown(self.plan.margin_bytes, self.devices)
        return self

    @property
    def probe(self) -> ProbeRequest:
        """The probe to make if no stored one fits."""
        return ProbeRequest(
            devices=self.devices,
            driver=self.driver,
            settings=self.settings.alone,
            max_batch=self.plan.max_global_batch or self.plan.global_batch,
            batch_multiple=self.plan.batch_multiple or USUAL_MULTIPLE,
            duration_s=self.probe_s,
            deadline_s=self.measuring.deadline_s,
            seed=self.measuring.seed,
            least_samples=self.plan.global_batch or 0,
            for_split=len(self.devices) > 1,
            each=self.each,
        )


class LayersRequest(Cutting, Request):
    """A model to cut into stages over these devices and train as a pipeline of micro-batches."""

    measuring: Measuring = Measuring()

    @model_validator(mode="after")
    def _has_these_devices(self) -> LayersRequest:
        refuse_unknown(self.margin_bytes, self.devices)
        return self

    @property
    def in_a_step(self) -> int:
        """Micro-batches in a step."""
        return self.micro_batches or _MICRO_BATCHES_A_DEVICE * len(self.devices)

    @property
    def uncut(self) -> BalanceRequest:
        """The search for a batch split of the whole model, with which the pipeline is compared."""
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


MeasureRequest = (
    RunRequest | ProbeRequest | BalanceRequest | IndependentRequest | LayersRequest
)


def refuse_together(
    devices: Sequence[Device], all_reduce: AllReduce, named: Sequence[Device] = ()
) -> None:
    """Raises UsageError for MIG slices together, and for an all-reduce that these devices can't do.

    `named` are those that were asked for, if some of them get no samples: what was meant for
    several hosts also trains where the best split leaves all but one host out.
    """
    if len(devices) > 1 and any(device.uuid.startswith("MIG-") for device in devices):
        raise UsageError(
            "CUDA shows a process only one MIG slice: slices can't train together",
            remedy="name one slice",
        )
    if devices[0].simulated and all_reduce == "nccl":
        raise UsageError("--all-reduce nccl needs GPUs", remedy="use auto")
    hosts = hosts_of(devices)
    if len(hosts) > 1 and all_reduce not in ("auto", "nccl", "ring"):
        names = ", ".join(host for host in hosts if host)
        raise UsageError(
            f"--all-reduce {all_reduce} works on one host only, and the devices are on {names}",
            remedy="use auto, nccl or ring",
        )
    if len(hosts_of(named or devices)) == 1 and all_reduce == "ring":
        raise UsageError(
            "--all-reduce ring is for several hosts, and the devices are on one",
            remedy="use auto",
        )
    # TensorFlow sums two groups of n // 2 devices, and so drops what the last device has:
    # `aggregate_gradients_using_hierarchical_copy` in its cross_device_utils.py.
    if all_reduce == "hierarchical" and len(devices) > 1 and len(devices) % 2:
        how_many = f"there are {len(devices)}"
        if len(named) > len(devices):
            how_many = f"{len(devices)} of {len(named)} have samples in this split"
        raise UsageError(
            "--all-reduce hierarchical drops one device's gradients if the number of "
            f"devices is odd, and {how_many}",
            remedy="use one-device; gpubalance guide run says more",
        )


class Queueing(Record):
    """How a queue runs its commands.

    With `pull` each free device takes the next command, however slow it is. Their output goes to
    files in `logs`; null for a folder of gpubalance's own. With `resume` those that succeeded in an
    earlier run are not run again.
    """

    logs: Path | None = queue_option(
        "--logs DIR", "Write the output of each command to DIR/NNN.log."
    )
    resume: bool = queue_option(
        "--resume",
        "Run only the commands that did not succeed in an earlier run.",
        default=False,
    )
    pull: bool = queue_option(
        "--pull",
        "Give each free device the next command at once, however slow the device is.",
        default=False,
    )


PIPE = "-"


class QueueRequest(Queueing):
    """Commands for a shell from the file `source`, each to be run on one of these devices.

    The source is `PIPE` if it is no file, such as stdin.
    """

    devices: tuple[Device, ...]
    commands: tuple[str, ...]
    source: str


_VARIABLE = "GPUBALANCE_SPLIT"


class Launching(Record):
    """How often a script is started again after a loss, and when a process counts as lost.

    With fewer than `at_least` devices it is not. A process whose training takes no step for
    `deadline_s` is lost; null for however long.
    """

    restarts: Annotated[int, Field(ge=0, le=10_000)] = launching_option(
        "--restarts N",
        "After the loss of a process or a host, start the script again on the "
        "remaining devices, at most N times.",
        0,
    )
    at_least: Count = launching_option(
        "--at-least N", "Do not start again on fewer than N devices.", 1
    )
    deadline_s: WithinDay | None = launching_option(
        "--deadline S",
        "End everything if training finishes no step for longer than S seconds. "
        "Default: wait.",
    )


class TrainingProgress(Record):
    """How far a script's training is: in which step of which epoch, from 1 on; 0 before.

    `unsaved` steps have begun since the last backup, which `backs_up` says there are. The next step
    is `awaited` while nothing but the training goes on.
    """

    epoch: int = 0
    step: int = 0
    unsaved: int = 0
    backs_up: bool = False
    awaited: bool = False

    @property
    def place(self) -> tuple[int, int]:
        """Epoch and step, to be compared."""
        return self.epoch, self.step

    @property
    def has_trained(self) -> bool:
        """Whether a step has come to its end."""
        return self.place > (1, 1)

    @property
    def place_text(self) -> str:
        """`in step 7 of epoch 2`."""
        return f"in step {self.step} of epoch {self.epoch}"

    @property
    def lost_text(self) -> str:
        """What is lost if the training ends here."""
        if not self.epoch:
            return "training had not begun"
        since = "the last backup" if self.backs_up else "the beginning"
        return (
            f"steps lost since {since}: {self.unsaved:,}; training was "
            f"{self.place_text}"
        )


class LaunchedSplit(Record):
    """The split that a script trains with in place of that of the plan of this time."""

    created: str
    split: BatchSplit

    @property
    def environment(self) -> dict[str, str]:
        """The variable that tells it to the script."""
        return {_VARIABLE: self.model_dump_json()}


def launched_split(created: str) -> BatchSplit | None:
    """The split that `launch` gives in place of that plan's; None for the plan's own."""
    text = os.environ.get(_VARIABLE)
    if not text:
        return None
    launched = LaunchedSplit.model_validate_json(text)
    if launched.created != created:
        return None
    return launched.split
