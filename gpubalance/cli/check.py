"""`gpubalance check`."""

from __future__ import annotations

import shlex
from typing import Annotated

from gpubalance.cli.options import Devices, Unwatched, asked_of
from gpubalance.cli.parameters import Without
from gpubalance.errors import UsageError
from gpubalance.settings.measuring import Measuring
from gpubalance.settings.requests import RunRequest
from gpubalance.settings.settings import Settings
from gpubalance.settings.shares import Shares


def check(
    settings: Settings,
    gpus: Annotated[Devices, Without("hosts", "via")],
    reporting: Unwatched,
) -> None:
    """Without --gpus it runs on this machine's CPU, and touches no GPU.

    Example: gpubalance check --model train.py:build --data train.py:dataset
    """
    from gpubalance.cli.next_command import program
    from gpubalance.cli.output import Output, summed_up
    from gpubalance.cli.progress import Progress
    from gpubalance.devices.machine import find_machine
    from gpubalance.jobs.check import check as job
    from gpubalance.render.check import check_told
    from gpubalance.results.check import ModelCheck

    if not settings.model:
        raise UsageError("there is no model to check", remedy="--model train.py:build")
    machine = find_machine(gpus.simulate or ("1" if gpus.gpus is None else None))
    asked = asked_of(machine, gpus, settings)
    asked["devices"] = asked["devices"][:1]  # one tells it all
    request = RunRequest(**asked, split=Shares((1,)), measuring=Measuring())
    out = Output(reporting, quiet=reporting.quiet)

    def text(found: ModelCheck) -> str:
        own = ["--model", request.settings.model]
        own += ["--data", request.settings.data] if request.settings.data else []
        following = f"{program()} balance {shlex.join(own)}" if found.refused is None else ""
        return summed_up(found, check_told(found), (following, ()))

    with out.left_by_an_error(text), Progress(quiet=reporting.quiet) as tell:
        found = job(request, tell)
    out.give(found, text)
