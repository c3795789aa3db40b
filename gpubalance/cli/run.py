"""`gpubalance run`: the split that it measures is given by hand or by a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpubalance.cli.given_split import GivenSplit, changed_data
from gpubalance.cli.options import Devices, Epoch, Reporting, RunControl
from gpubalance.errors import UsageError
from gpubalance.settings.measuring import Measuring
from gpubalance.settings.refused import refuse_together
from gpubalance.settings.settings import Settings

if TYPE_CHECKING:
    from gpubalance.results.common import Warning_
    from gpubalance.results.plan import Plan
    from gpubalance.results.run import Run
    from gpubalance.settings.requests import RunRequest


def run(
    split: GivenSplit,
    gpus: Devices,
    settings: Settings,
    measuring: Measuring,
    control: RunControl,
    reporting: Reporting,
    epoch: Epoch,
) -> None:
    """Example: gpubalance run --gpus 0 1 --batches 820 568"""
    from gpubalance.cli.dry_run import dry_run
    from gpubalance.cli.job import job_of
    from gpubalance.cli.next_command import command
    from gpubalance.cli.output import summed_up
    from gpubalance.devices.planned import forced
    from gpubalance.jobs.keep.probes import refuse_what_failed, solo_bests
    from gpubalance.jobs.run import run as measure
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
    """The plan that is named, if any. Raises UsageError if it is for simulated devices only."""
    from gpubalance.results.plan import Plan
    from gpubalance.results.records import read_record

    if split.plan is None:
        if split.force:
            raise UsageError("--force is for --plan", remedy="leave it out")
        return None
    plan = read_record(split.plan, Plan)
    if plan.devices[0].simulated and gpus.simulate is None and not split.force:
        raise UsageError(
            f"{split.plan} is a plan for simulated devices",
            remedy="simulate them as it was made: gpubalance run --simulate PROFILE.toml --plan "
            f"{split.plan}\n--force runs it on the GPUs that are here",
        )
    return plan
