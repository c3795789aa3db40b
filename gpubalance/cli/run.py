"""`gpubalance run`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from gpubalance.cli.measuring import MeasuringOptions, WindowOptions
from gpubalance.cli.options import DeviceOptions, JointTrainingOptions, ReportingOptions, measuring_option
from gpubalance.cli.split import EpochOption, GivenSplitOptions
from gpubalance.settings import choices

Baseline = Annotated[
    choices.Baseline,
    measuring_option(
        "--baseline", metavar="even|none", help="Measure the even split too, in turns with this one, or not."
    ),
]


def run(
    split: GivenSplitOptions,
    gpus: DeviceOptions,
    training: JointTrainingOptions,
    windows: WindowOptions,
    measuring: MeasuringOptions,
    reporting: ReportingOptions,
    baseline: Baseline = "even",
    epoch: EpochOption = None,
) -> None:
    """Example: gpubalance run --gpus 0 1 --batches 820 568"""
    from gpubalance.cli.measured import measured
    from gpubalance.cli.next_command import command, typed
    from gpubalance.cli.output import width
    from gpubalance.cli.planned import unlike_samples
    from gpubalance.devices.planned import forced
    from gpubalance.jobs.keep.journals import run_journal
    from gpubalance.jobs.keep.saved_probes import refuse_what_failed, solo_bests
    from gpubalance.jobs.run import run as run_job
    from gpubalance.render.run import run_told
    from gpubalance.render.summary import summary
    from gpubalance.results.run import Run

    how = windows.measuring(measuring, baseline)
    plan, machine = split.read_plan(gpus, training), gpus.machine()
    if plan is None:
        request = split.by_hand(machine, gpus, training, how)
        again = command("probe", request.devices, request.settings, gpus.simulate)
        refuse_what_failed(request.devices, request.split, request.settings, again)
    else:
        request = split.by_plan(plan, machine, training, how, gpus.simulate)
    used = request.split.used
    solo = solo_bests(request.devices, request.split, request.settings)
    unplanned = plan is None and len(used) > 1
    balance = command("balance", request.devices, request.settings, gpus.simulate)
    noted = [
        *(forced(plan, request.devices) if plan and split.force else ()),
        *(unlike_samples(plan, request.settings, balance, force=split.force) if plan else ()),
    ]
    following = balance if unplanned else ""
    model = plan.model if plan and not split.force else None
    retyped = partial(typed, simulate=gpus.simulate)
    measured(
        "run",
        machine,
        request,
        measuring,
        reporting,
        used=[request.devices[number] for number in used],
        kind=Run,
        journal=run_journal,
        job=lambda request, driver, watch, journal: run_job(request, driver, watch, solo, model, journal),
        text=lambda run: summary(run_told(run, epoch), run.warnings, following, (), width(), retyped),
        noted=noted,
    )
