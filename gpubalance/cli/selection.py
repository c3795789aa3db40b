"""The devices and settings that a command works with, from its options."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpubalance.cli.complete import models
from gpubalance.cli.own_code import refuse_unusable
from gpubalance.errors import UsageError
from gpubalance.settings.choices import (
    SAVED_MODEL,
    default_model,
    names_file_or_code,
    refuse_name,
    refuse_unknown_model,
)
from gpubalance.settings.device import Device
from gpubalance.settings.settings import Settings
from gpubalance.text import clean

if TYPE_CHECKING:
    from gpubalance.cli.options import Devices
    from gpubalance.devices.machine import Machine


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
