"""What `run --plan` needs besides the plan, as no file may provide it: the model's code, and a simulation's profile."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from gpubalance.errors import BadInput, PlanMismatch, UsageError
from gpubalance.settings import choices

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpubalance.results.common import Warning_
    from gpubalance.results.plan import Plan
    from gpubalance.settings.requests import Settings


def check_simulated(plan: Plan, path: Path, simulate: str | None) -> None:
    """Raises UsageError for a plan for simulated devices if --simulate is missing."""
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


def planned_settings(plan: Plan, path: str, model: str | None, data: str | None, simulate: str | None) -> Settings:
    """The settings to train a plan with. Only a built-in model is taken from the plan, as a file must not start code.

    Raises UsageError for a model other than the plan's, BadInput if its model or its samples must be named.
    """
    from gpubalance.cli.next_command import command

    known = plan.settings
    own = choices.names_file_or_code(known.model)
    if model is not None and not own and model != known.model:
        other = command("balance", plan.devices, known.model_copy(update={"model": model}), simulate)
        raise UsageError(
            f"the plan's batches are for {known.model}, and suit no other model: --model {model}",
            remedy=f"leave --model out, or make a plan for it:\n{other} -o other.json",
        )
    unnamed = [
        *([f"a model of your own, {known.model}"] if own and model is None else []),
        *([f"samples of your own, {known.data}"] if known.data is not None and data is None else []),
    ]
    if unnamed:
        named = {"--model": (model or known.model) if own else None, "--data": data or known.data}
        words = [word for option, name in named.items() if name for word in (option, name)]
        raise BadInput(
            f"the plan is for {' and '.join(unnamed)}, and a plan runs no code and opens no file by itself",
            remedy=f"name what it is for: gpubalance run --plan {shlex.join([path, *words])}",
        )
    return known.model_copy(update={"model": model or known.model, "data": data})


def unlike_samples(plan: Plan, settings: Settings, balance: str, *, force: bool) -> Iterator[Warning_]:
    """A warning if the samples are not those the plan was made with; `balance` is the command that measures these.

    Raises PlanMismatch for samples from another function, unless forced.
    """
    from gpubalance.results.common import Warning_
    from gpubalance.workers.code import code_key

    known = plan.settings
    if known.data is None or plan.code in ("", code_key(settings.model, settings.data)):
        return
    if settings.data != known.data and not force:
        raise PlanMismatch(
            f"the plan is for the samples of {known.data}, and {settings.data} gives others",
            remedy=f"make a plan for these: {balance}\n--force runs this one all the same",
        )
    yield Warning_(
        code="data-changed",
        message=f"the file of {settings.data} has changed since the plan was made"
        if settings.data == known.data
        else f"the plan is for the samples of {known.data}",
        next=f"if its samples have another size now, other batches suit them: {balance}",
    )
