"""`gpubalance doctor`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from gpubalance.cli.options import Devices, Unwatched
from gpubalance.cli.parameters import Without
from gpubalance.errors import EnvironmentFault
from gpubalance.numbers.units import all_digits
from gpubalance.settings.settings import Settings

if TYPE_CHECKING:
    from gpubalance.render.checkup import Paint
    from gpubalance.results.checkup import Checkup, Checkups


def doctor(
    gpus: Devices,
    reporting: Unwatched,
    settings: Annotated[
        Settings, Without("precision", "xla", "input", "data", "all_reduce")
    ],
) -> None:
    """It also tests copies between GPUs and a training step.

    With --hosts, all hosts are checked in parallel.

    Example: gpubalance doctor
    """
    from gpubalance.cli.output import Output, width
    from gpubalance.cli.progress import Progress
    from gpubalance.devices.hosts import connect_hosts
    from gpubalance.devices.machine import find_machine
    from gpubalance.jobs.doctor.doctor import doctor as doctor_job
    from gpubalance.jobs.doctor.doctor import doctor_of
    from gpubalance.render.checkup import checkup_text
    from gpubalance.system.state import current_folder

    current_folder()  # raises here, as no check of TensorFlow could say what is wrong
    hosts = connect_hosts(gpus.hosts, gpus.via)
    progress = Progress(quiet=reporting.quiet)
    model = settings.model or None

    def text(result: Checkup | Checkups) -> str:
        return checkup_text(result, width(), _paint())

    output = Output(reporting, text)
    with output.left_by_an_error():
        result: Checkup | Checkups
        if hosts:
            words = []
            if gpus.simulate is not None:
                words += ["--simulate", gpus.simulate]
                words += ["--time-scale", all_digits(gpus.time_scale)]
            if model is not None:
                words += ["--model", model]
            result = doctor_of(hosts, words, gpus.gpus, progress)
        else:
            machine = None
            if gpus.simulate is not None:
                machine = find_machine(gpus.simulate).slowed(gpus.time_scale)
            result = doctor_job(machine, gpus.gpus, model, progress)
        _refuse_failures(result)
    output.give(result)


def _refuse_failures(result: Checkup | Checkups) -> None:
    """Raises EnvironmentFault that names what failed, first what to fix first.

    The text of the result tells it in full, with the other checks.
    """
    from gpubalance.results.checkup import Checkups

    checkups = result.hosts if isinstance(result, Checkups) else (result,)
    for checkup in checkups:
        # Several devices may fail in the same way.
        failed = list(dict.fromkeys(check.what for check in checkup.failures))
        if failed:
            place = f" on {checkup.host}" if checkup.host else ""
            remedy = "fix it first, as described above"
            if len(failed) > 1:
                remedy = "fix them in this order, as described above"
            raise EnvironmentFault(
                f"this failed{place}: {', '.join(failed)}",
                remedy=remedy,
                partial=result,
            )


def _paint() -> Paint:
    """A function that colours a status on stdout, unless that is no terminal or colours are off."""
    from rich.color import ColorSystem
    from rich.console import Console
    from rich.style import Style

    console = Console(file=sys.stdout)  # respects NO_COLOR, TERM=dumb and FORCE_COLOR
    if console.color_system is None or console.no_color:
        return lambda _, word: word
    styles = {
        "ok": "green",
        "warning": "yellow",
        "failure": "bold red",
        "skipped": "dim",
    }
    return lambda status, word: Style.parse(styles[status]).render(
        word, color_system=ColorSystem.STANDARD
    )
