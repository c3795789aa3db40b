"""`gpubalance plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubalance.cli.options import Devices, Epoch, Printed, settings_on
from gpubalance.cli.parameters import Without
from gpubalance.errors import BadInput
from gpubalance.settings.planning import PlanRequest
from gpubalance.settings.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpubalance.results.probe import Probe
    from gpubalance.settings.device import Device

ProbeFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="PROBE.json",
        help=(
            "What `probe -o` wrote. Default: the latest whole probe of these devices. A balance "
            "by it counts too."
        ),
    ),
]


def plan(
    gpus: Devices,
    settings: Annotated[Settings, Without("all_reduce")],
    split: PlanRequest,
    output: Printed,
    epoch: Epoch,
    probe: ProbeFile = None,
) -> None:
    """Example: gpubalance plan --gpus 0 1"""
    from gpubalance.cli.next_command import uses
    from gpubalance.cli.output import Output, summed_up
    from gpubalance.devices.hosts import connect_hosts
    from gpubalance.devices.machine import check_hosts, select
    from gpubalance.jobs.plan.plan import plan as job
    from gpubalance.render.plan import plan_told
    from gpubalance.results.probe import Probe
    from gpubalance.results.records import read_record

    out = Output(output, quiet=True)
    if probe is not None:
        found = read_record(probe, Probe)
        check_hosts(found.devices, connect_hosts(gpus.hosts, gpus.via), "the probe's")
        devices, joint = select(gpus.gpus, found.devices), None
    else:
        machine = gpus.machine()
        devices, joint = machine.select(gpus.gpus), machine.joint
        found = _kept_probe(devices, settings_on(devices, settings), gpus.simulate)
    made = job(found, devices, split, joint)
    following = uses(made, gpus.simulate, output.output)
    out.give(made, lambda plan: summed_up(plan, plan_told(plan, epoch.epoch), following))


def _kept_probe(devices: Sequence[Device], settings: Settings, simulate: str | None) -> Probe:
    """The best probe that is kept. Raises BadInput if these devices were not probed with these
    settings.
    """
    from gpubalance.cli.next_command import command
    from gpubalance.jobs.keep.saved import best_probe

    found = best_probe(devices, settings)
    if found is None:
        why = (
            f"no probe of these devices with --model {settings.model}, as it is now, and these "
            "settings is kept here"
        )
        raise BadInput(why, remedy=f"make one: {command('probe', devices, settings, simulate)}")
    return found
