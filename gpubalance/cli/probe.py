"""`gpubalance probe`."""

from __future__ import annotations

from gpubalance.cli.measuring import AloneOptions, MeasuringOptions
from gpubalance.cli.options import DeviceOptions, ReportingOptions, TrainingOptions


def probe(
    gpus: DeviceOptions,
    training: TrainingOptions,
    alone: AloneOptions,
    measuring: MeasuringOptions,
    reporting: ReportingOptions,
) -> None:
    """Example: gpubalance probe --gpus 0 1"""
    from gpubalance.cli.measured import estimated, measured
    from gpubalance.cli.next_command import command
    from gpubalance.cli.output import width
    from gpubalance.jobs.keep.journals import probe_journal
    from gpubalance.jobs.probe.probe import probe as probe_job
    from gpubalance.render.probe import probe_told
    from gpubalance.render.summary import summary
    from gpubalance.results.probe import Probe

    machine = gpus.machine()
    devices = machine.select(gpus.named)
    request = alone.request(devices, training, measuring)
    if alone.dry_run:
        estimated(machine, devices, measuring, reporting, request)
        return

    def text(result: Probe) -> str:
        following = command("balance", result.devices, result.settings, gpus.simulate) if result.complete else ""
        return summary(probe_told(result), result.warnings, following, (), width())

    measured(
        "probe",
        machine,
        request,
        measuring,
        reporting,
        used=devices,
        kind=Probe,
        journal=probe_journal,
        job=probe_job,
        text=text,
    )
