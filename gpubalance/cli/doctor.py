"""`gpubalance doctor`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gpubalance.cli.options import DeviceOptions, ModelOption, OutputOptions, QuietOption
from gpubalance.errors import EnvironmentFault, UsageError

if TYPE_CHECKING:
    from gpubalance.render.doctor import Paint
    from gpubalance.results.checkup import Checkup, Status


def doctor(gpus: DeviceOptions, output: OutputOptions, model: ModelOption = None, quiet: QuietOption = False) -> None:
    """Check the machine: driver, libraries, GPUs, copies between them, a training step; and say how to fix it.

    Example: gpubalance doctor
    """
    from gpubalance.cli.output import check_output, width
    from gpubalance.cli.progress import Progress
    from gpubalance.jobs.doctor.doctor import doctor as doctor_job
    from gpubalance.render.doctor import checkup_text

    if gpus.hosts is not None:
        raise UsageError("doctor checks the host that it runs on", remedy="run it on each: ssh HOST gpubalance doctor")
    out = check_output(output, quiet=quiet)

    def check() -> Checkup:
        checkup = doctor_job(gpus.simulate, gpus.named, model, Progress(quiet=quiet))
        failure = checkup.first_failure
        if failure is not None:
            raise EnvironmentFault(f"{failure.what}: {failure.detail}", remedy=failure.next or "", partial=checkup)
        return checkup

    out.give_measured(check, lambda checkup: checkup_text(checkup, width(), _paint()))


def _paint() -> Paint:
    """How a status is coloured on stdout; not at all where it is no terminal, or unwished."""
    from rich.color import ColorSystem
    from rich.console import Console
    from rich.style import Style

    from gpubalance.render.doctor import plain

    console = Console(file=sys.stdout)  # knows NO_COLOR, TERM=dumb and FORCE_COLOR
    if console.color_system is None or console.no_color:
        return plain
    styles: dict[Status, Style] = {
        "ok": Style.parse("green"),
        "warning": Style.parse("yellow"),
        "failure": Style.parse("bold red"),
        "skipped": Style.parse("dim"),
    }
    return lambda status, word: styles[status].render(word, color_system=ColorSystem.STANDARD)
