"""`gpubalance plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubalance.cli.options import Devices, Epoch, Printed, Times, settings_on
from gpubalance.cli.parameters import Without
from gpubalance.errors import BadInput, EnvironmentFault, UsageError
from gpubalance.settings.planning import PlanRequest
from gpubalance.settings.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpubalance.results.plan import Plan
    from gpubalance.results.probe import Probe
    from gpubalance.settings.device import Device

_WITHOUT_DEVICES = (
    "without devices: `gpubalance plan PROBE.json` (from `probe -o`) or `gpubalance "
    "plan --curve TIMES.csv` (step times)"
)

ProbeFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="PROBE.json",
        help="A probe, from `probe -o`. Default: the latest complete probe of these "
        "devices, with the measurements of each balance that used it.",
    ),
]


def plan(
    gpus: Devices,
    settings: Annotated[Settings, Without("all_reduce")],
    split: PlanRequest,
    reporting: Printed,
    epoch: Epoch,
    elsewhere: Times,
    probe_file: ProbeFile = None,
) -> None:
    """It also predicts the split's throughput.

    Example: gpubalance plan --gpus 0 1
    """
    from gpubalance.cli.next_command import uses
    from gpubalance.cli.output import Output, summed_up
    from gpubalance.devices.hosts import connect_hosts
    from gpubalance.devices.machine import check_hosts
    from gpubalance.devices.selection import select
    from gpubalance.jobs.plan.plan import plan as job
    from gpubalance.render.plan import plan_summary
    from gpubalance.results.probe import Probe
    from gpubalance.results.records import read_record

    def text(result: Plan) -> str:
        following = uses(result, gpus.simulate, reporting.output)
        return summed_up(result, plan_summary(result, epoch.epoch), *following)

    output = Output(reporting, text, shows_progress=False)
    if (probe_file or elsewhere.times) and settings != Settings():
        raise UsageError(
            "a file of measurements brings its own model and settings",
            remedy="leave out the file, or the options for model and settings",
        )
    if elsewhere.times is not None:
        if probe_file or gpus.simulate or gpus.hosts:
            raise UsageError(
                "--curve brings its own devices: leave out the probe, --simulate and "
                "--hosts"
            )
        _plan_elsewhere(elsewhere.times, gpus, split, reporting, epoch)
        return
    joint = None
    if probe_file is not None:
        probe = read_record(probe_file, Probe)
        check_hosts(probe.devices, connect_hosts(gpus.hosts, gpus.via), "the probe's")
        devices = select(gpus.gpus, probe.devices)
    else:
        try:
            machine = gpus.machine()
            devices = machine.select(gpus.gpus)
        except EnvironmentFault as error:
            error.remedy = f"{error.remedy}\n{_WITHOUT_DEVICES}"
            raise
        joint = machine.joint
        asked = settings_on(devices, settings, machine.time_scale)
        probe = _kept_probe(devices, asked, gpus.simulate)
    output.give(job(probe, devices, split, joint))


def _plan_elsewhere(
    path: Path, gpus: Devices, split: PlanRequest, reporting: Printed, epoch: Epoch
) -> None:
    """Plans by a table of step times that were measured elsewhere."""
    from gpubalance.cli.next_command import uses_elsewhere
    from gpubalance.cli.output import Output, summed_up
    from gpubalance.devices.selection import select
    from gpubalance.jobs.plan.plan import plan_of_times
    from gpubalance.jobs.plan.times import read_times
    from gpubalance.render.plan import plan_summary

    def text(result: Plan) -> str:
        parts = list(plan_summary(result, epoch.epoch))
        if result.sync_s is not None and split.sync_s is None:
            parts.append(
                "corrected by the steps of several devices together in the table"
            )
        following = uses_elsewhere(result, path, len(table.probe.devices))
        return summed_up(result, parts, *following)

    output = Output(reporting, text, shows_progress=False)
    table = read_times(path)
    devices = select(gpus.gpus, table.probe.devices)
    output.give(plan_of_times(table, devices, split))


def _kept_probe(
    devices: Sequence[Device], settings: Settings, simulate: str | None
) -> Probe:
    """The best probe that is kept.

    Raises BadInput if these devices were not probed with these settings.
    """
    from gpubalance.cli.next_command import command
    from gpubalance.jobs.saved import best_probe

    probe = best_probe(devices, settings)
    if probe is None:
        raise BadInput(
            "there is no stored probe of these devices with these settings and the "
            f"current version of --model {settings.model}",
            remedy=f"make one: {command('probe', devices, settings, simulate)}",
        )
    return probe
