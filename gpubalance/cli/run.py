"""`gpubalance run`."""

from __future__ import annotations

from typing import Annotated

from gpubalance.cli.options import Care, Devices, Epoch, Reporting
from gpubalance.cli.parameters import Without
from gpubalance.cli.split import GivenSplit
from gpubalance.settings.requests import Measuring, Settings


def run(
    split: GivenSplit,
    gpus: Devices,
    settings: Settings,
    measuring: Measuring,
    care: Annotated[Care, Without("dry_run")],
    reporting: Reporting,
    epoch: Epoch,
) -> None:
    """Example: gpubalance run --gpus 0 1 --batches 820 568"""
    from gpubalance.cli.measured import measured
    from gpubalance.cli.next_command import command
    from gpubalance.cli.split import unlike_samples
    from gpubalance.devices.planned import forced
    from gpubalance.jobs.keep.saved_probes import refuse_what_failed, solo_bests
    from gpubalance.jobs.run import run as run_job
    from gpubalance.render.run import run_told

    plan, machine = split.read_plan(gpus, settings), gpus.machine()
    if plan is None:
        request = split.by_hand(machine, gpus, settings, measuring)
        again = command("probe", request.devices, request.settings, gpus.simulate)
        refuse_what_failed(request.devices, request.split, request.settings, again)
    else:
        request = split.by_plan(plan, machine, settings, measuring, gpus.simulate)
    solo = solo_bests(request.devices, request.split, request.settings)
    balance = command("balance", request.devices, request.settings, gpus.simulate)
    noted = [
        *(forced(plan, request.devices) if plan and split.force else ()),
        *(unlike_samples(plan, request.settings, balance, force=split.force) if plan else ()),
    ]
    following = balance if plan is None and len(request.split.used) > 1 else ""
    model = plan.model if plan and not split.force else None
    measured(
        gpus,
        machine,
        request,
        care,
        reporting,
        lambda request, driver, watch, journal: run_job(request, driver, watch, solo, model, journal),
        lambda run: run_told(run, epoch.epoch),
        lambda _: (following, ()),
        noted,
    )
