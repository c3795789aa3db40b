"""The options that several commands take, and the devices and settings that they name."""

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
from gpubalance.settings.record import (
    Record,
    TimeScale,
    devices_option,
    measuring_option,
    output_option,
    split_option,
)
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
        "--simulate NAME|FILE|N",
        "Use simulated devices instead of GPUs: your own profile, one of "
        "gpubalance's (see gpubalance guide profiles), or N plain CPU devices.",
    )
    time_scale: TimeScale = devices_option(
        "--time-scale X",
        "With a profile: multiply all its times by X, for a machine that computes "
        "your model more slowly than the profile says.",
        1.0,
    )
    hosts: str | None = devices_option(
        "--hosts NAME,…",
        "Use the devices of these hosts: of alpha,beta the devices alpha:0, alpha:1 "
        "and beta:0. --hosts ray uses the nodes of a Ray cluster.",
    )
    via: str | None = devices_option(
        "--via PREFIX",
        "The command that reaches a host. Default: ssh -o BatchMode=yes {host}.",
    )

    def machine(self) -> Machine:
        """The devices here, on these hosts, or simulated. Raises what finding them raises."""
        from gpubalance.devices.hosts import connect_hosts
        from gpubalance.devices.machine import find_machine
        from gpubalance.jobs.devices import machine_over

        hosts = connect_hosts(self.hosts, self.via)
        if hosts and self.simulate is None:
            return machine_over(hosts).slowed(self.time_scale)
        return find_machine(self.simulate, hosts).slowed(self.time_scale)


class DryStart(Record):
    """Whether a command only says what it would start."""

    dry_run: bool = output_option(
        "--dry-run",
        "Show what would start, and where, without starting it.",
        default=False,
    )


class RunControl(Record):
    """How a measurement begins, or whether it does."""

    resume: bool = measuring_option(
        "--resume",
        "Continue an unfinished measurement of the same devices and settings.",
        default=False,
    )
    strict: bool = measuring_option(
        "--strict",
        "Refuse a GPU that another process uses, instead of warning.",
        default=False,
    )
    dry_run: bool = measuring_option(
        "--dry-run",
        "Show what would be done and how long it would take, without doing it.",
        default=False,
    )


class Times(Record):
    times: Path | None = devices_option(
        "--curve TIMES.csv",
        "Use step times measured elsewhere instead of a probe: a table with the "
        "columns device, batch and seconds, as torch_curve.py writes it: gpubalance "
        "guide pytorch. If a device has no row of a batch that ran out of memory, its "
        "largest batch in the table counts as its limit.",
    )


class Epoch(Record):
    epoch: Annotated[int, Field(ge=1, le=10**12)] | None = split_option(
        "--epoch N",
        "Samples in one of your epochs; the result then shows how long an epoch takes.",
    )


class Scripting(Record):
    script: Path | None = output_option(
        "--script FILE",
        "Write a Python script that trains your model on your data with this split.",
    )


class Reporting(Record):
    """How a result is printed, where it is written, and what is written meanwhile."""

    as_json: bool = output_option(
        "--json", "Print the result as JSON, and nothing else on stdout.", default=False
    )
    output: Path | None = output_option(
        "--output -o FILE", "Write the result to FILE as JSON."
    )
    overwrite: bool = output_option(
        "--overwrite", "Overwrite files that exist.", default=False
    )
    quiet: bool = output_option(
        "--quiet -q", "Show no progress on stderr.", default=False
    )
    tensorboard: Path | None = output_option(
        "--tensorboard DIR",
        "Write measurements to DIR as they are made, for TensorBoard.",
    )
    trace: Path | None = output_option(
        "--trace DIR",
        "At the end, trace some more steps with TensorFlow's profiler, and write the "
        "trace to DIR.",
    )


# Of a command that writes nothing meanwhile.
Unwatched = Annotated[Reporting, Without("tensorboard", "trace")]
# Of one that shows no progress.
# --quiet is taken all the same, as scripts give it to every command.
Printed = Annotated[Reporting, Without("tensorboard", "trace")]


def request_fields(
    machine: Machine, gpus: Devices, settings: Settings, *, minimum: int = 1
) -> dict[str, Any]:
    """The fields that every request has.

    Raises UsageError for fewer devices than `minimum`.
    """
    devices = machine.select(gpus.gpus)
    if len(devices) < minimum:
        raise UsageError(
            f"at least {minimum} devices are needed; only {devices[0].label} is "
            "selected",
            remedy="--gpus 0 1",
        )
    return {
        "devices": devices,
        "driver": machine.driver,
        "settings": settings_on(devices, settings, machine.time_scale),
        "joint": machine.joint,
    }


def settings_on(
    devices: Sequence[Device], settings: Settings, time_scale: float
) -> Settings:
    """The settings with the time scale, and the model that suits the devices if none was named.

    Raises UsageError or BadInput for names that can't be meant, and UsageError for --data with
    --input host, which is for random samples.
    """
    if settings.data is not None and settings.input == "host":
        raise UsageError(
            "--input host is for random samples; --data has an input pipeline of its "
            "own",
            remedy="leave it out",
        )
    _refuse_names("--model", settings.model)
    _refuse_names("--data", settings.data or "")
    applications = models()
    if settings.model and applications and not names_file_or_code(settings.model):
        refuse_unknown_model(settings.model, applications)
    model = settings.model or default_model(simulated=devices[0].simulated)
    return settings.model_copy(update={"model": model, "time_scale": time_scale})


def _refuse_names(flag: str, name: str) -> None:
    """Raises UsageError for a missing file, BadInput for another name that is none.

    The worker would, but seconds later.
    """
    file = name.rpartition(":")[0] or name
    if file.endswith((".py", SAVED_MODEL)) and not Path(file).is_file():
        example = "train.py:function" if file.endswith(".py") else "saved.keras"
        raise UsageError(
            f"{flag}: the file {clean(file)} does not exist",
            remedy=f"give the path: {flag} folder/{example}",
        )
    if name:
        refuse_unusable(flag, name)
        refuse_name(flag, name)
