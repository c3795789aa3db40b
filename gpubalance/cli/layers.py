"""`gpubalance layers`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from gpubalance.cli import values
from gpubalance.cli.measuring import MeasuringOptions, ProofOptions
from gpubalance.cli.options import (
    DeviceOptions,
    ModelOption,
    PrecisionOption,
    UnwatchedOptions,
    measuring_option,
    settings_of,
    split_option,
)
from gpubalance.errors import UsageError
from gpubalance.settings import choices

if TYPE_CHECKING:
    from gpubalance.devices.machine import Machine
    from gpubalance.settings.device import Device
    from gpubalance.settings.requests import LayersRequest, Measuring


@dataclass(frozen=True)
class CutTrainingOptions:
    """What is cut."""

    model: ModelOption = None
    precision: PrecisionOption = "float32"


@dataclass(frozen=True)
class CutRoundOptions:
    """How to find the cut, before it is proven."""

    rounds: Annotated[
        int, measuring_option("--rounds", metavar="N", min=1, max=100, help="Measure cuts at most that many times.")
    ] = 5
    fresh: Annotated[
        bool,
        measuring_option("--fresh", help="Probe again, even if these devices were probed with these settings before."),
    ] = False
    round_duration: Annotated[
        float, measuring_option("--round-duration", metavar="S", help="Seconds to measure each cut that is tried.")
    ] = 3.0
    dry_run: Annotated[
        bool,
        measuring_option("--dry-run", help="Say what would be done and how long it would take, and do nothing."),
    ] = False


@dataclass(frozen=True)
class CutOptions:
    """How to cut the model, and what a step is."""

    micro_batch: Annotated[
        int | None,
        split_option(
            "--micro-batch",
            metavar="N",
            min=1,
            max=10**6,
            help="Samples in a micro-batch. Default: the fewest that are within 5 % of the best.",
        ),
    ] = None
    micro_batches: Annotated[
        int | None,
        split_option(
            "--micro-batches", metavar="N", min=1, max=1024, help="Micro-batches in a step. Default: 8 a device."
        ),
    ] = None
    cuts: Annotated[
        list[str] | None,
        split_option("--cuts", metavar="LAYER…", help="Cut before these layers, and nowhere else. Default: anywhere."),
    ] = None
    schedule: Annotated[
        choices.Schedule,
        split_option(
            "--schedule",
            metavar="KIND",
            help="1f1b: forwards and backwards in turns; gpipe: all forwards first, to compare with.",
        ),
    ] = "1f1b"
    margin: Annotated[
        str, split_option("--margin", metavar="SIZE", help="Memory to keep free on each device, such as 512MiB.")
    ] = "0"
    force: Annotated[bool, split_option("--force", help="Cut a model that is faster uncut, too.")] = False

    def request(
        self,
        machine: Machine,
        devices: tuple[Device, ...],
        training: CutTrainingOptions,
        search: CutRoundOptions,
        measuring: Measuring,
    ) -> LayersRequest:
        """The request. Raises UsageError for an invalid --margin or duration."""
        from gpubalance.settings.requests import LayersRequest

        model = training.model or choices.default_model(simulated=devices[0].simulated)
        return LayersRequest(
            devices=devices,
            settings=settings_of(model, None, precision=training.precision, xla=False, input_="device"),
            joint=machine.joint,
            micro_batch=self.micro_batch,
            micro_batches=self.micro_batches,
            cuts=tuple(self.cuts or ()),
            schedule=self.schedule,
            margin_bytes=values.size("--margin", self.margin),
            force=self.force,
            measuring=measuring,
            round_s=values.seconds("--round-duration", search.round_duration, 3600),
            rounds=search.rounds,
            fresh=search.fresh,
        )


def _devices(devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """The devices. Raises UsageError for a single one, and for devices of several hosts."""
    from gpubalance.settings.device import hosts_of

    if len(devices) < 2:
        raise UsageError(
            f"layers is for two devices or more, and there is {devices[0].label}", remedy="name several: --gpus 0 1"
        )
    if len(hosts_of(devices)) > 1:
        raise UsageError(
            "layers are cut over the devices of one host: what they send each other is too much for a network",
            remedy="name the devices of one host: --gpus",
        )
    return devices


def layers(
    gpus: DeviceOptions,
    training: CutTrainingOptions,
    cut: CutOptions,
    search: CutRoundOptions,
    windows: ProofOptions,
    measuring: MeasuringOptions,
    reporting: UnwatchedOptions,
) -> None:
    """Example: gpubalance layers --gpus 0 1 -o layers.json"""
    from gpubalance.cli.measured import estimated, measured
    from gpubalance.cli.next_command import layers_script, report_command
    from gpubalance.cli.output import width
    from gpubalance.jobs.keep.journals import layers_journal
    from gpubalance.jobs.layers.layers import layers as layers_job
    from gpubalance.render.layers import layers_told
    from gpubalance.render.summary import summary
    from gpubalance.results.layers import Layers

    machine = gpus.machine()
    devices = _devices(machine.select(gpus.named))
    request = cut.request(machine, devices, training, search, windows.measuring(measuring))
    if search.dry_run:
        estimated(machine, devices, measuring, reporting, request)
        return

    def text(result: Layers) -> str:
        path = reporting.output
        using = report_command(path), layers_script(path, gpus.simulate)
        return summary(layers_told(result), result.warnings, *using, width())

    measured(
        "layers",
        machine,
        request,
        measuring,
        reporting,
        used=devices,
        kind=Layers,
        journal=layers_journal,
        job=layers_job,
        text=text,
    )
