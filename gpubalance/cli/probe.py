"""`gpubalance probe`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from gpubalance.cli import values
from gpubalance.cli.measuring import MeasuringOptions
from gpubalance.cli.options import DeviceOptions, ReportingOptions, TrainingOptions, measuring_option

if TYPE_CHECKING:
    from gpubalance.settings.device import Device
    from gpubalance.settings.requests import ProbeRequest


@dataclass(frozen=True)
class AloneOptions:
    """How a device is measured alone."""

    max_batch: Annotated[
        int | None,
        measuring_option(
            "--max-batch", metavar="N", min=1, max=10**9, help="Try no larger batch. Default: until memory is full."
        ),
    ] = None
    batch_multiple: Annotated[
        int,
        measuring_option(
            "--batch-multiple",
            metavar="N",
            min=1,
            max=10**6,
            help="Try only multiples of this; where memory does not hold one, all smaller batches.",
        ),
    ] = 8
    margin: Annotated[
        str,
        measuring_option("--margin", metavar="SIZE", help="Memory to keep free on each device, such as 512MiB."),
    ] = "0"
    duration: Annotated[
        float,
        measuring_option(
            "--duration",
            metavar="S",
            help="Seconds to measure a batch size; up to 4 times that while it is not known within ±1 %.",
        ),
    ] = 3.0
    parallel: Annotated[
        bool,
        measuring_option("--parallel", help="All devices at once, for hosts where they do not disturb each other."),
    ] = False
    ahead: Annotated[
        bool,
        measuring_option(
            "--ahead/--no-ahead", help="Start the next worker, which loads TensorFlow for seconds, before it is needed."
        ),
    ] = True
    dry_run: Annotated[
        bool,
        measuring_option("--dry-run", help="Say what would be measured and how long it would take, and do nothing."),
    ] = False

    def request(
        self, devices: tuple[Device, ...], training: TrainingOptions, measuring: MeasuringOptions
    ) -> ProbeRequest:
        """Raises UsageError for what --margin and the seconds do not take."""
        from gpubalance.settings.requests import ProbeRequest

        return ProbeRequest(
            devices=devices,
            settings=training.settings(devices),
            max_batch=self.max_batch,
            batch_multiple=self.batch_multiple,
            margin_bytes=values.size("--margin", self.margin),
            duration_s=values.seconds("--duration", self.duration, 3600),
            time_limit_s=measuring.time_limit_s,
            deadline_s=measuring.deadline_s,
            parallel=self.parallel,
            ahead=self.ahead,
            seed=measuring.seed,
        )


def probe(
    gpus: DeviceOptions,
    training: TrainingOptions,
    alone: AloneOptions,
    measuring: MeasuringOptions,
    reporting: ReportingOptions,
) -> None:
    """Measure what each device can do alone: throughput over batch sizes, batch limit, step-time model.

    Example: gpubalance probe --gpus 0 1
    """
    from gpubalance.cli.measured import measured
    from gpubalance.cli.next_command import command
    from gpubalance.cli.output import check_output, width
    from gpubalance.devices.machine import find_machine
    from gpubalance.jobs.keep.journals import probe_journal
    from gpubalance.jobs.probe.estimate import estimate
    from gpubalance.jobs.probe.probe import probe as probe_job
    from gpubalance.render.probe import estimate_text, probe_text
    from gpubalance.results.probe import Probe

    machine = find_machine(gpus.simulate)
    devices = machine.select(gpus.named)
    request = alone.request(devices, training, measuring)
    if alone.dry_run:
        machine.warnings(devices, strict=measuring.strict)
        check_output(reporting, quiet=reporting.quiet).give(estimate(request), estimate_text)
        return

    def text(result: Probe) -> str:
        following = command("balance", result.devices, result.settings, gpus.simulate) if result.complete else ""
        return probe_text(result, following, width())

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
