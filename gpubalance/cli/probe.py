"""`gpubalance probe`."""

from __future__ import annotations

from typing import Annotated

from gpubalance.cli.options import Care, Devices, Reporting, settings_on
from gpubalance.cli.parameters import Without
from gpubalance.settings.requests import ProbeRequest, Probing, Settings


def probe(
    gpus: Devices,
    settings: Annotated[Settings, Without("all_reduce")],
    probing: Probing,
    care: Care,
    reporting: Reporting,
) -> None:
    """Example: gpubalance probe --gpus 0 1"""
    from gpubalance.cli.measured import measured
    from gpubalance.cli.next_command import command
    from gpubalance.cli.output import width
    from gpubalance.jobs.probe.probe import probe as probe_job
    from gpubalance.render.probe import probe_told
    from gpubalance.render.table import summary
    from gpubalance.results.probe import Probe

    def text(result: Probe) -> str:
        refused = any(warning.code == "not-for-a-split" for warning in result.warnings)
        goes_on = result.complete and not refused
        following = command("balance", result.devices, result.settings, gpus.simulate) if goes_on else ""
        return summary(probe_told(result), result.warnings, following, (), width())

    machine = gpus.machine()
    devices = machine.select(gpus.gpus)
    request = ProbeRequest(devices=devices, settings=settings_on(devices, settings), **dict(probing))
    measured(machine, request, care, reporting, probe_job, text)
