"""`gpubalance probe`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from gpubalance.cli.options import Devices, Reporting, RunControl, asked_of
from gpubalance.cli.parameters import Without
from gpubalance.settings.measuring import Probing
from gpubalance.settings.requests import ProbeRequest
from gpubalance.settings.settings import Settings

if TYPE_CHECKING:
    from gpubalance.cli.next_command import Following
    from gpubalance.results.probe import Probe


def probe(
    gpus: Devices,
    settings: Annotated[Settings, Without("all_reduce")],
    probing: Probing,
    care: RunControl,
    reporting: Reporting,
) -> None:
    """Example: gpubalance probe --gpus 0 1"""
    from gpubalance.cli.measured import measured
    from gpubalance.cli.next_command import command
    from gpubalance.jobs.probe.probe import probe as job
    from gpubalance.render.probe import probe_told

    def following(result: Probe) -> Following:
        refused = any(warning.code == "not-for-a-split" for warning in result.warnings)
        goes_on = result.complete and not refused
        return command(
            "balance", result.devices, result.settings, gpus.simulate
        ) if goes_on else "", ()

    machine = gpus.machine()
    request = ProbeRequest(**asked_of(machine, gpus, settings), **dict(probing))
    measured(machine, request, care, reporting, job, probe_told, following)
