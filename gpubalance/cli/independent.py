"""`gpubalance independent`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from gpubalance.cli import complete, function_name, values
from gpubalance.cli.measuring import MeasuringOptions, WindowOptions
from gpubalance.cli.options import (
    DataOption,
    DeviceOptions,
    InputOption,
    PrecisionOption,
    ReportingOptions,
    XlaOption,
    settings_of,
    split_option,
    training_option,
)
from gpubalance.errors import UsageError

if TYPE_CHECKING:
    from gpubalance.devices.machine import Machine
    from gpubalance.settings.device import Device
    from gpubalance.settings.requests import IndependentRequest, Measuring, Settings


@dataclass(frozen=True)
class OwnModelOptions:
    """What each device trains."""

    batches: Annotated[
        list[str] | None,
        split_option(
            "--batches",
            metavar="N…",
            help="Samples of each device in one step of its own, in the order of --gpus: --batches 1024 512. Default: "
            "the smallest within 5 % of its best by its probe, else 64.",
        ),
    ] = None
    model: Annotated[
        list[str] | None,
        training_option(
            "--model",
            metavar="NAME…",
            help="What each device trains a copy of, named as for run. Several, one a device in the order of --gpus, "
            "train unlike models: --model a.py:build b.py:build",
            autocompletion=complete.models,
            callback=function_name.models,
        ),
    ] = None
    precision: PrecisionOption = "float32"
    xla: XlaOption = False
    input_: InputOption = "device"
    data: DataOption = None

    def request(self, machine: Machine, gpus: DeviceOptions, measuring: Measuring) -> IndependentRequest:
        """The request. Raises UsageError for a single device, and unless there are a batch and a model for each."""
        from gpubalance.cli.split import match
        from gpubalance.jobs.independent.batches import sensible_batch
        from gpubalance.settings.requests import IndependentRequest

        sizes = values.whole_numbers("--batches", self.batches)
        devices = match(machine.select(gpus.named), sizes, None, named=gpus.named is not None, least=2)
        if sizes is not None and not all(sizes):
            raise UsageError(
                "--batches 0: each device trains a model of its own",
                remedy="leave a device out with --gpus: name only those that train",
            )
        if len(devices) < 2:
            raise UsageError(
                f"independent is for two devices or more: what {devices[0].label} gives alone is what probe measures",
                remedy="name several: --gpus 0 1",
            )
        models = self._models(devices)
        settings = self._settings(" ".join(dict.fromkeys(models)))
        each = [settings.model_copy(update={"model": model}) for model in models]
        return IndependentRequest(
            devices=devices,
            batches=tuple(sizes or map(sensible_batch, devices, each)),
            models=models,
            settings=settings,
            joint=machine.joint,
            measuring=measuring,
        )

    def _models(self, devices: tuple[Device, ...]) -> tuple[str, ...]:
        from gpubalance.settings.choices import default_model

        given = self.model or [default_model(simulated=devices[0].simulated)]
        if len(given) not in (1, len(devices)):
            raise UsageError(
                f"{len(given)} models for {len(devices)} devices",
                remedy="give one model for all, or one a device, in the order of --gpus; --gpus names those that train",
            )
        return tuple(given if len(given) == len(devices) else given * len(devices))

    def _settings(self, model: str) -> Settings:
        return settings_of(model, self.data, precision=self.precision, xla=self.xla, input_=self.input_)


def independent(
    gpus: DeviceOptions,
    own: OwnModelOptions,
    windows: WindowOptions,
    measuring: MeasuringOptions,
    reporting: ReportingOptions,
) -> None:
    """Example: gpubalance independent --gpus 0 1 --batches 1024 512"""
    from gpubalance.cli.measured import measured
    from gpubalance.cli.next_command import command
    from gpubalance.cli.output import width
    from gpubalance.jobs.independent.independent import independent as independent_job
    from gpubalance.jobs.keep.journals import independent_journal
    from gpubalance.render.independent import independent_told
    from gpubalance.render.summary import summary
    from gpubalance.results.independent import Independent

    def text(result: Independent) -> str:
        """The summary; without a joint split to compare with, it ends with the command that finds one."""
        wanted = result.complete and result.joint is None and result.model is not None
        following = command("balance", result.devices, result.settings, gpus.simulate) if wanted else ""
        return summary(independent_told(result), result.warnings, following, (), width())

    machine = gpus.machine()
    request = own.request(machine, gpus, windows.measuring(measuring))
    measured(
        "independent",
        machine,
        request,
        measuring,
        reporting,
        used=request.devices,
        kind=Independent,
        journal=independent_journal,
        job=independent_job,
        text=text,
    )
