"""What `run --plan` needs beside a plan, as no file must say it: the model's code, and the profile of a simulation."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from gpubalance.errors import BadInput, UsageError
from gpubalance.settings import choices

if TYPE_CHECKING:
    from gpubalance.results.plan import Plan


def check_simulated(plan: Plan, path: Path, simulate: str | None) -> None:
    """Raises UsageError for a plan for simulated devices that is to run without --simulate."""
    if simulate is not None or not plan.devices[0].simulated:
        return
    paced = any(device.profile for device in plan.devices)
    names = ", ".join(f"{device.label} {device.name}" for device in plan.devices)
    source = "PROFILE.toml" if paced else str(1 + max(device.index for device in plan.devices))
    which = ", with the profile that it was made with" if paced else ""
    raise UsageError(
        f"{path} is a plan for simulated devices ({names})",
        remedy=f"simulate them{which}: gpubalance run --simulate {source} --plan {shlex.quote(str(path))}\n"
        "--force runs it on the GPUs that are here",
    )


def planned_model(plan: Plan, model: str | None, simulate: str | None) -> str:
    """What is trained with a plan. Only a built-in model is taken from it, as a file must not start code.

    Raises UsageError for another model than the plan's, BadInput where its model must be named.
    """
    from gpubalance.cli.next_command import command

    built_in = not choices.names_file_or_code(plan.settings.model)
    if model is not None and built_in and model != plan.settings.model:
        other = command("balance", plan.devices, plan.settings.model_copy(update={"model": model}), simulate)
        raise UsageError(
            f"the plan's batches are for {plan.settings.model}, and suit no other model: --model {model}",
            remedy=f"leave --model out, or make a plan for it:\n{other} -o other.json",
        )
    if model is None and not built_in:
        raise BadInput(
            f"the plan is for a model of your own, {plan.settings.model}, and a plan starts no code and opens no file",
            remedy=f"name it: --model {shlex.quote(plan.settings.model)}",
        )
    return model or plan.settings.model


def planned_data(plan: Plan, data: str | None) -> str | None:
    """The samples that are trained on. Raises BadInput where those of the plan's must be named."""
    if data is None and plan.settings.data is not None:
        raise BadInput(
            f"the plan is for samples of your own, {plan.settings.data}, and a plan starts no code",
            remedy=f"name them: --data {shlex.quote(plan.settings.data)}",
        )
    return data
