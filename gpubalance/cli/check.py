"""`gpubalance check`."""

from __future__ import annotations

import shlex
from typing import Annotated

from gpubalance.cli.options import Devices, Unwatched, request_fields
from gpubalance.cli.parameters import Without
from gpubalance.errors import GpubalanceError, UsageError
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.requests import RunRequest
from gpubalance.settings.settings import Settings


def check(
    settings: Settings,
    gpus: Annotated[Devices, Without("hosts", "via")],
    reporting: Unwatched,
) -> None:
    """It also lists what a split would compute differently from one device.

    Without --gpus it runs on this machine's CPU and uses no GPU.

    Example: gpubalance check --model train.py:build --data train.py:dataset
    """
    from gpubalance.cli.output import Output, summed_up
    from gpubalance.cli.progress import Progress
    from gpubalance.devices.machine import find_machine
    from gpubalance.jobs.check import check as job
    from gpubalance.render.checkup import check_summary
    from gpubalance.results.checkup import ModelCheck

    if not settings.model:
        raise UsageError("check needs a model", remedy="--model train.py:build")
    simulate = gpus.simulate
    if simulate is None and gpus.gpus is None:
        simulate = "1"
    machine = find_machine(simulate).slowed(gpus.time_scale)
    fields = request_fields(machine, gpus, settings)
    devices = fields["devices"]
    fields["devices"] = devices[:1]  # what holds for one holds for all
    request = RunRequest(**fields, split=BatchSplit((1,)))

    def text(check: ModelCheck) -> str:
        following = ""
        if check.refused is None:
            following = _balance(gpus, request.settings)
        return summed_up(check, check_summary(check), following)

    output = Output(reporting, text)
    with output.left_by_an_error(), Progress(quiet=reporting.quiet) as progress:
        result = job(request, progress, devices)
    output.give(result)


def _balance(gpus: Devices, settings: Settings) -> str:
    """The command that balances the model with these settings.

    It takes simulated devices where no GPU can be used.
    """
    from gpubalance.cli.next_command import options_of, program

    words = []
    simulate = gpus.simulate
    if simulate is None and gpus.gpus is None and not _has_gpus():
        simulate = "2"
    if simulate:
        words += ["--simulate", simulate]
    if gpus.gpus:
        words += ["--gpus", *gpus.gpus]
    words += options_of(settings, Settings())
    return f"{program()} balance {shlex.join(words)}"


def _has_gpus() -> bool:
    """Whether a GPU can be used here. None is touched: NVML lists them."""
    from gpubalance.devices.machine import find_machine

    try:
        find_machine(None)
    except GpubalanceError:
        return False
    return True
