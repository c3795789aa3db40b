"""The split that `run` measures, by hand or from a plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from gpubalance.cli.options import Devices, settings_on, split_option
from gpubalance.cli.planned import check_simulated, planned_settings
from gpubalance.errors import UsageError
from gpubalance.settings.choices import DEFAULT_BATCH
from gpubalance.settings.record import Record
from gpubalance.settings.requests import Measuring, RunRequest, Settings
from gpubalance.settings.shares import Shares

if TYPE_CHECKING:
    from gpubalance.devices.machine import Machine
    from gpubalance.results.plan import Plan
    from gpubalance.settings.device import Device

Batch = Annotated[int, Field(ge=0, le=10**9)]


class GivenSplit(Record):
    """The split that `run` measures."""

    batches: tuple[Batch, ...] | None = split_option(
        "--batches N…",
        "Samples of each device in one step, in the order of --gpus: --batches 820 568; 0 leaves one out. "
        f"Default: {DEFAULT_BATCH} each.",
    )
    micro_batches: tuple[Batch, ...] | None = split_option(
        "--micro-batches N…",
        "Samples that each device takes at a time if its memory does not hold its whole batch; their gradients are "
        "summed: --batches 1640 568 --micro-batches 820 568. Default: the whole batch.",
    )
    plan: Path | None = split_option(
        "--plan PLAN.json", "Run what plan or balance wrote: its devices, batches and settings."
    )
    force: bool = split_option(
        "--force", "With --plan: run it even if its devices or its model have changed.", default=False
    )

    def read_plan(self, gpus: Devices, settings: Settings) -> Plan | None:
        """The plan, or None. Raises UsageError for --force without --plan, and for options that the plan replaces."""
        from gpubalance.results.plan import Plan
        from gpubalance.results.records import read_record

        if self.plan is None and self.force:
            raise UsageError("--force is for --plan", remedy="leave it out")
        if self.plan is None:
            return None
        self._refuse_beside_a_plan(gpus, settings)
        plan = read_record(self.plan, Plan)
        if not self.force:
            check_simulated(plan, self.plan, gpus.simulate)
        return plan

    def by_hand(self, machine: Machine, gpus: Devices, settings: Settings, measuring: Measuring) -> RunRequest:
        """The run that the options ask for. Raises UsageError if they contradict each other."""
        devices = machine.select(gpus.gpus)
        if self.batches is None and self.micro_batches is not None:
            raise UsageError("--micro-batches needs --batches", remedy="give both, in the order of --gpus")
        if self.batches is not None:
            check_batches(self.batches, devices, named=gpus.gpus is not None)
        try:
            split = Shares(self.batches or (DEFAULT_BATCH,) * len(devices), self.micro_batches or ())
        except ValueError as error:
            raise UsageError(
                f"--batches: {error}", remedy="each device has one of each, in the order of --gpus; 0 leaves it out"
            ) from None
        return RunRequest(
            devices=devices,
            split=split,
            settings=settings_on(devices, settings, joint=True),
            joint=machine.joint,
            measuring=measuring,
        )

    def by_plan(
        self, plan: Plan, machine: Machine, settings: Settings, measuring: Measuring, simulate: str | None
    ) -> RunRequest:
        """The run of a plan on the devices here. Raises PlanMismatch if they have changed, unless forced.

        Raises BadInput if its model or its samples must be named.
        """
        from gpubalance.devices.planned import planned_devices

        return RunRequest(
            settings=planned_settings(plan, str(self.plan), settings.model or None, settings.data, simulate),
            devices=planned_devices(plan, machine.devices, force=self.force),
            split=plan.split,
            joint=machine.joint,
            measuring=measuring,
        )

    def _refuse_beside_a_plan(self, gpus: Devices, settings: Settings) -> None:
        given = [("--gpus", gpus.gpus), ("--batches", self.batches), ("--micro-batches", self.micro_batches)]
        others = settings != Settings(model=settings.model, data=settings.data)
        name = next((name for name, value in given if value), "the model's settings" if others else None)
        if name is not None:
            raise UsageError(
                f"{name} and --plan: the plan has its own", remedy="leave one out; gpubalance plan makes another plan"
            )


def check_batches(batches: Sequence[int], devices: Sequence[Device], *, named: bool, least: int = 1) -> None:
    """Raises UsageError unless there is one batch for each device, 0 to leave it out.

    `named` is whether --gpus chose the devices, `least` the fewest that can train.
    """
    number = len(batches)
    if number == len(devices):
        return
    fewer = ""
    if least <= number < len(devices) and not named:
        fewer = f", or name the devices that train: --gpus {' '.join(device.called for device in devices[:number])}"
    raise UsageError(
        f"{number} batch{'es' if number > 1 else ''} for {len(devices)} device{'s' if len(devices) > 1 else ''}",
        remedy=f"give each device a batch, in the order of --gpus{fewer}",
    )
