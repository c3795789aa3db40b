"""`gpubalance independent`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from gpubalance.cli.options import (
    Devices,
    Reporting,
    RunControl,
    request_fields,
    settings_on,
)
from gpubalance.cli.parameters import Without
from gpubalance.errors import UsageError
from gpubalance.settings.measuring import Measuring
from gpubalance.settings.record import (
    Count,
    Name,
    Record,
    split_option,
    training_option,
)
from gpubalance.settings.requests import IndependentRequest
from gpubalance.settings.settings import Settings

if TYPE_CHECKING:
    from gpubalance.devices.machine import Machine
    from gpubalance.results.independent import Independent


class OwnModels(Record):
    """What each device trains."""

    batches: tuple[Count, ...] | None = split_option(
        "--batches N…",
        "Batch of each device, in the order of --gpus: --batches 1024 512. Default: "
        "the smallest that gives 95 % of the device's highest throughput in its "
        "probe, or 64 if it was not probed.",
    )
    models: tuple[Name, ...] = training_option(
        "--model NAME…",
        "The model that each device trains, in the same form as for gpubalance run. "
        "Give several to train a different one on each device, in the order of "
        "--gpus: --model a.py:build b.py:build",
        (),
    )

    def request(
        self, machine: Machine, gpus: Devices, settings: Settings, measuring: Measuring
    ) -> IndependentRequest:
        """The request.

        Raises UsageError for a single device, and unless there are a batch and a model for each;
        also UsageError or BadInput for a model that can't be meant.
        """
        from gpubalance.jobs.saved import sensible_batch

        fields = request_fields(machine, gpus, settings, minimum=2)
        devices = fields["devices"]
        common: Settings = fields["settings"]
        models = self.models or (common.model,)
        if len(models) not in (1, len(devices)):
            raise UsageError(
                f"--model names {len(models)} models for {len(devices)} devices",
                remedy="give one model for all devices, or one for each device, in the "
                "order of --gpus",
            )
        own_settings = []
        for model in models:
            own = common.model_copy(update={"model": model})
            own_settings.append(settings_on(devices, own, machine.time_scale))
        own_settings *= len(devices) // len(models)
        models = tuple(own.model for own in own_settings)
        batches = self.batches or tuple(map(sensible_batch, devices, own_settings))
        if len(batches) != len(devices):
            raise UsageError(
                f"batches: {len(batches)} given for {len(devices)} devices",
                remedy="give one whole number per device, in --gpus order",
            )
        names = " ".join(dict.fromkeys(models))
        fields["settings"] = common.model_copy(update={"model": names})
        return IndependentRequest(
            **fields, batches=batches, models=models, measuring=measuring
        )


def independent(
    gpus: Devices,
    own_models: OwnModels,
    settings: Annotated[Settings, Without("model", "all_reduce")],
    measuring: Annotated[Measuring, Without("baseline")],
    control: RunControl,
    reporting: Reporting,
) -> None:
    """The difference is what sharing the machine costs.

    Example: gpubalance independent --gpus 0 1 --batches 1024 512
    """
    from gpubalance.cli.job import dry_run, job_of
    from gpubalance.cli.next_command import command
    from gpubalance.cli.output import summed_up
    from gpubalance.jobs.independent import independent as measure
    from gpubalance.render.independent import independent_summary

    def text(result: Independent) -> str:
        following = ""
        # Without a joint split to compare with, the command that finds one.
        if result.complete and result.joint is None and result.model is not None:
            following = command(
                "balance", result.devices, result.settings, gpus.simulate
            )
        return summed_up(result, independent_summary(result), following)

    machine = gpus.machine()
    request = own_models.request(machine, gpus, settings, measuring)
    if control.dry_run:
        dry_run(machine, request, control, reporting)
        return
    with job_of(machine, request, control, reporting, text) as job:
        job.result = measure(job.request, job.watch, job.journal)
