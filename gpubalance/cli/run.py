"""`gpubalance run`: the split that it measures is given by hand or by a plan."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from gpubalance.cli.options import Devices, Epoch, Reporting, RunControl, request_fields
from gpubalance.errors import BadInput, PlanMismatch, UsageError
from gpubalance.numbers.units import all_digits
from gpubalance.settings.choices import DEFAULT_BATCH, names_file_or_code
from gpubalance.settings.measuring import Measuring
from gpubalance.settings.record import Record, split_option
from gpubalance.settings.requests import RunRequest, refuse_together
from gpubalance.settings.settings import Settings

if TYPE_CHECKING:
    from gpubalance.cli.options import Devices
    from gpubalance.devices.machine import Machine
    from gpubalance.results.common import Warning_
    from gpubalance.results.plan import Plan
    from gpubalance.results.run import Run
    from gpubalance.settings.requests import RunRequest
_FORCE = "--force runs this plan anyway"


def run(
    split: GivenSplit,
    gpus: Devices,
    settings: Settings,
    measuring: Measuring,
    control: RunControl,
    reporting: Reporting,
    epoch: Epoch,
) -> None:
    """It also shows each device's throughput.

    Example: gpubalance run --gpus 0 1 --batches 820 568
    """
    from gpubalance.cli.job import dry_run, job_of
    from gpubalance.cli.next_command import command
    from gpubalance.cli.output import summed_up
    from gpubalance.devices.selection import forced
    from gpubalance.jobs.run import run as measure
    from gpubalance.jobs.saved import refuse_what_failed, solo_bests
    from gpubalance.render.run import run_summary

    plan = _read_plan(split, gpus)
    machine = gpus.machine()
    if plan is None:
        request = split.by_hand(machine, gpus, settings, measuring)
        probe = command("probe", request.devices, request.settings, gpus.simulate)
        refuse_what_failed(request.devices, request.split, request.settings, probe)
    else:
        request = split.by_plan(plan, machine, gpus, settings, measuring)
    balance = command("balance", request.devices, request.settings, gpus.simulate)
    noted: list[Warning_] = []
    if plan is not None:
        if split.force:
            noted += forced(plan, request.devices)
        noted += changed_data(plan, request.settings, balance, force=split.force)
    solo = solo_bests(request.devices, request.split, request.settings)
    model = plan.model if plan and not split.force else None
    following = ""
    if plan is None and len(request.split.used) > 1 and _can_train_together(request):
        following = balance

    def text(result: Run) -> str:
        return summed_up(result, run_summary(result, epoch.epoch), following)

    if control.dry_run:
        dry_run(machine, request, control, reporting)
        return
    with job_of(machine, request, control, reporting, text, noted) as job:
        job.result = measure(job.request, job.watch, job.journal, solo, model)


def _can_train_together(request: RunRequest) -> bool:
    """Whether all devices can train together, also those without samples in this split."""
    try:
        refuse_together(request.devices, request.settings.all_reduce)
    except UsageError:
        return False
    return True


def _read_plan(split: GivenSplit, gpus: Devices) -> Plan | None:
    """The plan that is named, if any.

    Raises UsageError if it is for simulated devices only, and PlanMismatch if it is from a table.
    """
    from gpubalance.devices.selection import refuse_table
    from gpubalance.results.plan import Plan
    from gpubalance.results.records import read_record

    if split.plan is None:
        if split.force:
            raise UsageError("--force needs --plan", remedy="leave it out")
        return None
    plan = read_record(split.plan, Plan)
    if not split.force:
        refuse_table(plan)
    if plan.devices[0].simulated and gpus.simulate is None and not split.force:
        raise UsageError(
            f"{split.plan} is a plan for simulated devices, and this run would use "
            "GPUs",
            remedy="name their profile: gpubalance run --simulate PROFILE.toml --plan "
            f"{shlex.quote(str(split.plan))}\n--force runs the plan on this machine's GPUs",
        )
    return plan


Batch = Annotated[int, Field(ge=0, le=10**9)]


class GivenSplit(Record):
    """The split that `run` measures."""

    batches: tuple[Batch, ...] | None = split_option(
        "--batches N…",
        "Batch of each device, in the order of --gpus: --batches 820 568; 0 leaves a "
        f"device out. Default: {DEFAULT_BATCH} each.",
    )
    micro_batches: tuple[Batch, ...] | None = split_option(
        "--micro-batches N…",
        "Micro-batch of each device, for batches that do not fit in memory; "
        "gradients are summed before the all-reduce: --batches 1640 568 "
        "--micro-batches 820 568. Default: the whole batch.",
    )
    plan: Path | None = split_option(
        "--plan PLAN.json",
        "Use the devices, batches and settings of a plan, from `plan -o` or `balance "
        "-o`.",
    )
    force: bool = split_option(
        "--force",
        "With --plan: run it even if its devices or its model have changed.",
        default=False,
    )

    def by_hand(
        self, machine: Machine, gpus: Devices, settings: Settings, measuring: Measuring
    ) -> RunRequest:
        """The run that the options ask for. Raises UsageError for what is no split."""
        from gpubalance.settings.batch_split import shares_of

        fields = request_fields(machine, gpus, settings)
        number = len(fields["devices"])
        batches = self.batches or (DEFAULT_BATCH,) * number
        split = shares_of(batches, self.micro_batches or (), number, order="--gpus")
        return RunRequest(**fields, split=split, measuring=measuring)

    def by_plan(
        self,
        plan: Plan,
        machine: Machine,
        gpus: Devices,
        settings: Settings,
        measuring: Measuring,
    ) -> RunRequest:
        """The run of a plan on the devices here.

        Raises UsageError for options that the plan replaces, PlanMismatch if the devices have
        changed, unless forced, and BadInput if its model or its samples must be named.
        """
        from gpubalance.devices.selection import (
            MAKE_ONE,
            nearest_devices,
            planned_devices,
        )

        only_names = Settings(model=settings.model, data=settings.data)
        if gpus.gpus or self.batches or self.micro_batches or settings != only_names:
            beside = {"--gpus": gpus.gpus, "--batches": self.batches}
            beside["--micro-batches"] = self.micro_batches
            given = [option for option, value in beside.items() if value]
            for name, value in settings:
                if value != getattr(only_names, name):
                    given.append("--" + name.replace("_", "-"))
            raise UsageError(
                "--plan already sets devices, batches and settings",
                remedy=f"leave out {' and '.join(given)}, or --plan",
            )
        self._refuse_unnamed(plan.settings, settings)
        if machine.time_scale == 1:
            machine = machine.slowed(plan.settings.time_scale)
        if self.force:
            devices = nearest_devices(plan, machine.devices)
        else:
            if machine.time_scale != plan.settings.time_scale:
                _refuse_time_scale(plan, machine.time_scale)
            remedy = MAKE_ONE
            if len(plan.split.used) <= len(machine.devices):
                remedy += f"; {_FORCE}"
            devices = planned_devices(plan, plan.split.used, machine.devices, remedy)
        names = {"model": settings.model or plan.settings.model, "data": settings.data}
        return RunRequest(
            settings=plan.settings.model_copy(update=names),
            devices=devices,
            driver=machine.driver,
            split=plan.split,
            joint=machine.joint,
            measuring=measuring,
        )

    def _refuse_unnamed(self, planned: Settings, named: Settings) -> None:
        """Raises BadInput if the plan's own code is not named.

        Only a built-in model is taken from the plan, as a file must not start code.
        """
        unnamed = []
        if names_file_or_code(planned.model) and not named.model:
            unnamed.append(f"--model {shlex.quote(planned.model)}")
        if planned.data and not named.data:
            unnamed.append(f"--data {shlex.quote(planned.data)}")
        if unnamed:
            raise BadInput(
                f"{self.plan} needs your own code, and gpubalance does not run code or "
                "open files just because a plan names them",
                remedy=f"name the code yourself: {' '.join(unnamed)}",
            )


def _refuse_time_scale(plan: Plan, time_scale: float) -> None:
    """Raises PlanMismatch if the plan is for a profile of another time scale than this one."""
    if plan.devices[0].profile is None:
        return
    was = "without --time-scale"
    if plan.settings.time_scale != 1:
        was = f"with --time-scale {all_digits(plan.settings.time_scale)}"
    asked = f"--time-scale {all_digits(time_scale)}"
    raise PlanMismatch(
        f"the plan was measured {was}, not with {asked}",
        remedy="leave out --time-scale: the plan sets it. Or make a plan with "
        f"{asked}\n{_FORCE}",
    )


def changed_data(
    plan: Plan, settings: Settings, balance: str, *, force: bool
) -> list[Warning_]:
    """A warning if the samples are not those the plan was made with.

    `balance` is the command that makes a plan for these. Raises PlanMismatch for samples from
    another function, unless forced.
    """
    from gpubalance.results.warnings import warning
    from gpubalance.settings.code import code_key

    planned = plan.settings
    if planned.data is None or plan.code in (
        "",
        code_key(settings.model, settings.data),
    ):
        return []
    why = (
        f"the plan was made for the samples of {planned.data}, but this run has those "
        f"of {settings.data}"
    )
    if settings.data == planned.data:
        why = (
            f"the code of {planned.data} or of the model has changed since the plan "
            "was made"
        )
    if settings.data != planned.data and not force:
        raise PlanMismatch(
            why, remedy=f"make a plan for this data: {balance}\n{_FORCE}"
        )
    return [warning("data-changed", why=why, balance=balance)]
