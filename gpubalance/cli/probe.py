"""`gpubalance probe`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from gpubalance.cli.options import Devices, Reporting, RunControl, request_fields
from gpubalance.cli.parameters import Without
from gpubalance.settings.measuring import Probing
from gpubalance.settings.requests import ProbeRequest
from gpubalance.settings.settings import Settings

if TYPE_CHECKING:
    from gpubalance.results.probe import Probe


def probe(
    gpus: Devices,
    settings: Annotated[Settings, Without("all_reduce")],
    probing: Probing,
    control: RunControl,
    reporting: Reporting,
) -> None:
    """It finds throughput by batch size, the batch limit and a step-time model.

    Example: gpubalance probe --gpus 0 1
    """
    from gpubalance.cli.job import dry_run, job_of
    from gpubalance.cli.next_command import command
    from gpubalance.cli.output import summed_up
    from gpubalance.jobs.probe.probe import probe as measure
    from gpubalance.render.probe import probe_summary

    def text(result: Probe) -> str:
        following = ""
        refused = any(warning.code == "not-for-a-split" for warning in result.warnings)
        if result.complete and not refused:
            following = command(
                "balance", result.devices, result.settings, gpus.simulate
            )
        return summed_up(result, probe_summary(result), following)

    machine = gpus.machine()
    request = ProbeRequest(**request_fields(machine, gpus, settings), **dict(probing))
    if control.dry_run:
        dry_run(machine, request, control, reporting)
        return
    with job_of(machine, request, control, reporting, text) as job:
        job.result = measure(job.request, job.watch, job.journal)
