"""The split: what `plan` and `balance` should find, and what `run` gets by hand or from a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gpubalance.cli import complete, values
from gpubalance.cli.noise_scale import noise_scale
from gpubalance.cli.options import DeviceOptions, JointTrainingOptions, split_option
from gpubalance.cli.planned import check_simulated, planned_settings
from gpubalance.errors import UsageError
from gpubalance.settings import choices

if TYPE_CHECKING:
    from gpubalance.devices.machine import Machine
    from gpubalance.results.plan import Plan
    from gpubalance.settings.device import Device
    from gpubalance.settings.requests import Measuring, PlanRequest, RunRequest


EpochOption = Annotated[
    int | None,
    split_option(
        "--epoch",
        metavar="N",
        help="Samples in one of your epochs: the result says how long an epoch takes.",
        callback=values.between(1, 10**12),
    ),
]


@dataclass(frozen=True)
class WantedSplitOptions:
    """The wishes for the split that the planner finds."""

    global_batch: Annotated[
        int | None,
        split_option(
            "--global-batch",
            metavar="B",
            help="Samples of all devices in one step, exactly. Default: whatever gives the most samples per second.",
            callback=values.between(1, 10**9),
        ),
    ] = None
    max_global_batch: Annotated[
        int | None,
        split_option(
            "--max-global-batch",
            metavar="B",
            help="The largest global batch.",
            callback=values.between(1, 10**9),
        ),
    ] = None
    accumulate: Annotated[
        str,
        split_option(
            "--accumulate",
            metavar="auto|off|N",
            help="The most micro-batches to divide a device's batch into if its memory is too small for it.",
            autocompletion=complete.accumulate,
        ),
    ] = "off"
    batch_multiple: Annotated[
        int | None,
        split_option(
            "--batch-multiple",
            metavar="N",
            help="Make each batch a multiple of this. Default: the probe's.",
            callback=values.between(1, 10**6),
        ),
    ] = None
    margin: Annotated[
        str,
        split_option(
            "--margin",
            metavar="SIZE",
            help="Memory to keep free on each device, beyond what a joint run needs, such as 512MiB.",
        ),
    ] = "0"
    from_batch: Annotated[
        int | None,
        split_option(
            "--from-batch",
            metavar="B",
            help="The global batch that your learning rate was tuned for. Default: the best device's best batch alone.",
            callback=values.between(1, 10**9),
        ),
    ] = None

    noise_scale: Annotated[
        str | None,
        split_option(
            "--noise-scale",
            metavar="N|FILE",
            help="Maximise goodput, what samples per second are worth in learning, by the gradient noise scale: in "
            "samples, or the file that split.monitor(noise=FILE) wrote. Default: maximise samples per second.",
        ),
    ] = None

    def request(self, sync_s: float | None = None) -> PlanRequest:
        """Raises UsageError for an invalid --accumulate, --margin or --noise-scale, BadInput for a bad file."""
        from gpubalance.settings.requests import PlanRequest

        return PlanRequest(
            global_batch=self.global_batch,
            max_global_batch=self.max_global_batch,
            accumulate=values.micro_batches(self.accumulate),
            batch_multiple=self.batch_multiple,
            margin_bytes=values.size("--margin", self.margin),
            sync_s=sync_s,
            from_batch=self.from_batch,
            noise_scale=None if self.noise_scale is None else noise_scale(self.noise_scale),
        )


@dataclass(frozen=True)
class GivenSplitOptions:
    """The split that `run` measures."""

    batches: Annotated[
        list[str] | None,
        split_option(
            "--batches",
            metavar="N…",
            help="Samples of each device in one step, in the order of --gpus: --batches 820 568; 0 leaves one out. "
            f"Default: {choices.DEFAULT_BATCH} each.",
        ),
    ] = None
    micro_batches: Annotated[
        list[str] | None,
        split_option(
            "--micro-batches",
            metavar="N…",
            help="Samples that each device takes at a time if its memory does not hold its whole batch; their "
            "gradients are summed: --batches 1640 568 --micro-batches 820 568. Default: the whole batch.",
        ),
    ] = None
    plan: Annotated[
        Path | None,
        split_option(
            "--plan",
            metavar="PLAN.json",
            help="Run what plan or balance wrote: its devices, batches and settings.",
        ),
    ] = None
    force: Annotated[
        bool,
        split_option("--force", help="With --plan: run it even if its devices or its model have changed."),
    ] = False

    def read_plan(self, gpus: DeviceOptions, training: JointTrainingOptions) -> Plan | None:
        """The plan, or None. Raises UsageError for --force without --plan, and for options that the plan replaces."""
        from gpubalance.results.plan import Plan
        from gpubalance.results.records import read_record

        if self.plan is None and self.force:
            raise UsageError("--force is for --plan", remedy="leave it out")
        if self.plan is None:
            return None
        self._refuse_beside_a_plan(gpus, training)
        plan = read_record(self.plan, Plan)
        if not self.force:
            check_simulated(plan, self.plan, gpus.simulate)
        return plan

    def by_hand(
        self, machine: Machine, gpus: DeviceOptions, training: JointTrainingOptions, measuring: Measuring
    ) -> RunRequest:
        """The run that the options ask for. Raises UsageError if they contradict each other."""
        from gpubalance.settings.requests import RunRequest
        from gpubalance.settings.shares import Shares

        sizes = values.whole_numbers("--batches", self.batches)
        micro_sizes = values.whole_numbers("--micro-batches", self.micro_batches)
        devices = match(machine.select(gpus.named), sizes, micro_sizes, named=gpus.named is not None)
        return RunRequest(
            devices=devices,
            split=Shares(tuple(sizes or [choices.DEFAULT_BATCH] * len(devices)), tuple(micro_sizes or ())),
            settings=training.settings(devices),
            joint=machine.joint,
            measuring=measuring,
        )

    def by_plan(
        self,
        plan: Plan,
        machine: Machine,
        training: JointTrainingOptions,
        measuring: Measuring,
        simulate: str | None,
    ) -> RunRequest:
        """The run of a plan on the devices here. Raises PlanMismatch if they have changed, unless forced.

        Raises BadInput if its model or its samples must be named.
        """
        from gpubalance.devices.planned import planned_devices
        from gpubalance.settings.requests import RunRequest

        settings = planned_settings(plan, str(self.plan), training.model, training.data, simulate)
        return RunRequest(
            devices=planned_devices(plan, machine.devices, force=self.force),
            split=plan.split,
            settings=settings,
            joint=machine.joint,
            measuring=measuring,
        )

    def _refuse_beside_a_plan(self, gpus: DeviceOptions, training: JointTrainingOptions) -> None:
        given = [("--gpus", gpus.gpus), ("--batches", self.batches), ("--micro-batches", self.micro_batches)]
        others = training != replace(JointTrainingOptions(), model=training.model, data=training.data)
        name = next((name for name, value in given if value), "the model's settings" if others else None)
        if name is not None:
            raise UsageError(
                f"{name} and --plan: the plan has its own", remedy="leave one out; gpubalance plan makes another plan"
            )


def match(
    devices: Sequence[Device],
    sizes: Sequence[int] | None,
    micro_sizes: Sequence[int] | None,
    *,
    named: bool,
    least: int = 1,
) -> tuple[Device, ...]:
    """The devices that the batches are for.

    Raises UsageError unless there is one batch for each device, 0 to leave it out, and, if there are micro-batches, one
    for each batch and not larger than it. `named` is whether --gpus chose the devices, `least` the fewest that can
    train.
    """
    if sizes is None:
        if micro_sizes is not None:
            raise UsageError("--micro-batches needs --batches", remedy="give both, in the order of --gpus")
        return tuple(devices)
    if not any(sizes):
        raise UsageError(
            "--batches: all are 0, so no device would train",
            remedy="give at least one device more than 0; 0 leaves a device out",
        )
    if len(sizes) != len(devices):
        chosen = " ".join(device.called for device in devices[: len(sizes)])
        can_be_fewer = least <= len(sizes) < len(devices) and not named
        fewer = f", or name the devices that train: --gpus {chosen}" if can_be_fewer else ""
        raise UsageError(
            f"{_count(len(sizes), 'batch')} for {_count(len(devices), 'device')}",
            remedy=f"give each device a batch, in the order of --gpus{fewer}",
        )
    if micro_sizes is not None and len(micro_sizes) != len(sizes):
        raise UsageError(
            f"{_count(len(micro_sizes), 'micro-batch')} for {_count(len(sizes), 'batch')}",
            remedy="give one micro-batch a device, in the order of --gpus; the batch itself where it is taken whole",
        )
    for device, batch, micro in zip(devices, sizes, micro_sizes or sizes, strict=True):
        if batch and not micro:
            raise UsageError(
                f"--micro-batches: {device.label}'s must be above 0",
                remedy=f"give {device.label}'s batch itself, {batch}, where it is taken whole",
            )
        if micro > batch:
            raise UsageError(
                f"--micro-batches: {device.label}'s {micro} is above its batch, {batch}",
                remedy=f"give {batch}, to take it whole, or less",
            )
    return tuple(devices)


def _count(number: int, word: str) -> str:
    plural = "es" if word.endswith("ch") else "s"
    return f"{number} {word}{'' if number == 1 else plural}"
