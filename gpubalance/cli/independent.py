"""`gpubalance independent`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from gpubalance.cli.options import Care, Devices, Reporting, settings_on, split_option
from gpubalance.cli.parameters import Without
from gpubalance.cli.split import Batch, match
from gpubalance.errors import UsageError
from gpubalance.settings.record import Record, option
from gpubalance.settings.requests import IndependentRequest, Measuring, Settings

if TYPE_CHECKING:
    from gpubalance.devices.machine import Machine


class OwnModels(Record):
    """What each device trains."""

    batches: tuple[Batch, ...] | None = split_option(
        "--batches N…",
        "Samples of each device in one step of its own, in the order of --gpus: --batches 1024 512. Default: the "
        "smallest within 5 % of its best by its probe, else 64.",
    )
    models: tuple[str, ...] = option(
        "Training",
        "--model NAME…",
        "What each device trains a copy of, named as for run. Several, one a device in the order of --gpus, train "
        "unlike models: --model a.py:build b.py:build",
        (),
    )

    def request(self, machine: Machine, gpus: Devices, asked: Settings, measuring: Measuring) -> IndependentRequest:
        """The request. Raises UsageError for a single device, and unless there are a batch and a model for each."""
        from gpubalance.jobs.keep.saved_probes import sensible_batch

        devices = match(machine.select(gpus.gpus), self.batches, None, named=gpus.gpus is not None, least=2)
        if self.batches is not None and not all(self.batches):
            raise UsageError(
                "--batches 0: each device trains a model of its own",
                remedy="leave a device out with --gpus: name only those that train",
            )
        if len(devices) < 2:
            raise UsageError(
                f"independent is for two devices or more: what {devices[0].label} gives alone is what probe measures",
                remedy="name several: --gpus 0 1",
            )
        settings = settings_on(devices, asked)
        models = self.models or (settings.model,)
        if len(models) not in (1, len(devices)):
            raise UsageError(
                f"{len(models)} models for {len(devices)} devices",
                remedy="give one model for all, or one a device, in the order of --gpus; --gpus names those that train",
            )
        models = models * len(devices) if len(models) == 1 else models
        each = [settings.model_copy(update={"model": model}) for model in models]
        return IndependentRequest(
            devices=devices,
            batches=self.batches or tuple(map(sensible_batch, devices, each)),
            models=models,
            settings=settings.model_copy(update={"model": " ".join(dict.fromkeys(models))}),
            joint=machine.joint,
            measuring=measuring,
        )


def independent(
    gpus: Devices,
    own: OwnModels,
    settings: Annotated[Settings, Without("model", "all_reduce")],
    measuring: Annotated[Measuring, Without("baseline")],
    care: Annotated[Care, Without("dry_run")],
    reporting: Reporting,
) -> None:
    """Example: gpubalance independent --gpus 0 1 --batches 1024 512"""
    from gpubalance.cli.measured import measured
    from gpubalance.cli.next_command import command
    from gpubalance.cli.output import width
    from gpubalance.jobs.independent.independent import independent as independent_job
    from gpubalance.render.independent import independent_told
    from gpubalance.render.table import summary
    from gpubalance.results.independent import Independent

    def text(result: Independent) -> str:
        """The summary; without a joint split to compare with, it ends with the command that finds one."""
        wanted = result.complete and result.joint is None and result.model is not None
        following = command("balance", result.devices, result.settings, gpus.simulate) if wanted else ""
        return summary(independent_told(result), result.warnings, following, (), width())

    machine = gpus.machine()
    request = own.request(machine, gpus, settings, measuring)
    measured(machine, request, care, reporting, independent_job, text)
