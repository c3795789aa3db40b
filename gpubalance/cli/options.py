"""The options that several commands take, beside those of the requests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from gpubalance.cli.complete import models
from gpubalance.cli.own_code import refuse_unusable
from gpubalance.cli.parameters import Without
from gpubalance.errors import UsageError
from gpubalance.settings.choices import (
    SAVED_MODEL,
    default_model,
    names_file_or_code,
    refuse_name,
    refuse_unknown_model,
)
from gpubalance.settings.device import Device
from gpubalance.settings.options import (
    devices_option,
    measuring_option,
    output_option,
    split_option,
)
from gpubalance.settings.record import Record
from gpubalance.settings.settings import Settings
from gpubalance.text import clean

if TYPE_CHECKING:
    from gpubalance.devices.machine import Machine


class Devices(Record):
    """The devices that a command uses."""

    gpus: tuple[str, ...] | None = devices_option(
        "--gpus N…", "Devices by index, UUID or bus id: --gpus 0 1. Default: all."
    )
    simulate: str | None = devices_option(
        "--simulate FILE|N",
        "Use simulated devices instead of GPUs: a profile (see configs/), or N plain CPU devices.",
    )
    hosts: str | None = devices_option(
        "--hosts NAME,…",
        "Use the devices of these hosts, named alpha:0 alpha:1 beta:0. ray: of a Ray "
        "cluster's nodes.",
    )
    via: str | None = devices_option(
        "--via PREFIX", "The command that reaches a host. Default: ssh -o BatchMode=yes {host}."
    )

    def machine(self) -> Machine:
        """The devices here, on these hosts, or simulated. Raises what finds and reaches them."""
        from gpubalance.devices.hosts import connect_hosts
        from gpubalance.devices.machine import find_machine
        from gpubalance.jobs.devices import machine_over

        hosts = connect_hosts(self.hosts, self.via)
        return (
            machine_over(hosts)
            if hosts and self.simulate is None
            else find_machine(self.simulate, hosts)
        )


class RunControl(Record):
    """What a measurement takes care of."""

    resume: bool = measuring_option(
        "--resume",
        "Continue an unfinished measurement of the same devices and settings.",
        default=False,
    )
    strict: bool = measuring_option(
        "--strict", "Refuse a GPU that another process uses, instead of warning.", default=False
    )
    dry_run: bool = measuring_option(
        "--dry-run",
        "Say what would be done and how long it would take, and do nothing.",
        default=False,
    )


class Epoch(Record):
    epoch: Annotated[int, Field(ge=1, le=10**12)] | None = split_option(
        "--epoch N", "Samples in one of your epochs: the result says how long an epoch takes."
    )


class Scripting(Record):
    script: Path | None = output_option(
        "--script FILE", "Write a Python script that trains your model and data with it."
    )


class Reporting(Record):
    """How a result is printed, where it is written, and what is written meanwhile."""

    as_json: bool = output_option(
        "--json", "Print the result as JSON, and nothing else on stdout.", default=False
    )
    output: Path | None = output_option("--output -o FILE", "Write the result as JSON.")
    overwrite: bool = output_option("--overwrite", "Replace FILE if it exists.", default=False)
    quiet: bool = output_option("--quiet -q", "No progress on stderr.", default=False)
    tensorboard: Path | None = output_option(
        "--tensorboard DIR", "Write measurements there as they come, for TensorBoard."
    )
    trace: Path | None = output_option(
        "--trace DIR",
        "Trace some more steps with TensorFlow's profiler at the end, and write the trace there.",
    )


# Of a command that writes nothing meanwhile.
Unwatched = Annotated[Reporting, Without("tensorboard", "trace")]
# Of one that shows no progress.
Printed = Annotated[Reporting, Without("quiet", "tensorboard", "trace")]


def asked_of(
    machine: Machine, gpus: Devices, settings: Settings, *, least: int = 1
) -> dict[str, Any]:
    """What every request begins with: the devices that are named, and what is trained on them. See
    `settings_on`.

    Raises UsageError for fewer devices than `least`.
    """
    devices = machine.select(gpus.gpus)
    if len(devices) < least:
        raise UsageError(
            f"this is for {least} devices or more, not for {devices[0].label} alone",
            remedy="--gpus 0 1",
        )
    chosen = settings_on(devices, settings)
    return {
        "devices": devices,
        "driver": machine.driver,
        "settings": chosen,
        "joint": machine.joint,
    }


def settings_on(devices: Sequence[Device], asked: Settings) -> Settings:
    """The settings with the model that suits the devices, if none was named.

    Raises UsageError for --data with --input host, which is for random samples.
    """
    if asked.data is not None and asked.input == "host":
        raise UsageError(
            "--input host is for random samples: --data has its own pipeline", remedy="leave it out"
        )
    _refuse_unknown(asked.model, asked.data or "")
    return asked.model_copy(
        update={"model": asked.model or default_model(simulated=devices[0].simulated)}
    )


def _refuse_unknown(model: str, data: str) -> None:
    """Raises UsageError for a file, BadInput for another name that is none; the worker would, but
    seconds later.
    """
    for flag, name in (("--model", model), ("--data", data)):
        file = name.rpartition(":")[0] or name
        if file.endswith((".py", SAVED_MODEL)) and not Path(file).is_file():
            like = "train.py:function" if file.endswith(".py") else "saved.keras"
            raise UsageError(
                f"{flag}: there is no file {clean(file)}",
                remedy=f"give its path: {flag} folder/{like}",
            )
        if name:
            refuse_unusable(flag, name)
            refuse_name(flag, name)
    applications = models()
    if model and applications and not names_file_or_code(model):
        refuse_unknown_model(model, applications)
