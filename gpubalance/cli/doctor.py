"""`gpubalance doctor`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from gpubalance.cli.options import Devices, Unwatched
from gpubalance.cli.parameters import Without
from gpubalance.errors import EnvironmentFault
from gpubalance.settings.settings import Settings

if TYPE_CHECKING:
    from gpubalance.render.doctor import Paint
    from gpubalance.results.checkup import Checkup, Checkups


def doctor(
    gpus: Devices,
    output: Unwatched,
    settings: Annotated[Settings, Without("precision", "xla", "input", "data", "all_reduce")],
) -> None:
    """With --hosts, all hosts are checked in parallel.

    Example: gpubalance doctor
    """
    from gpubalance.cli.output import Output, width
    from gpubalance.cli.progress import Progress
    from gpubalance.devices.hosts import connect_hosts
    from gpubalance.jobs.doctor.doctor import doctor as doctor_job
    from gpubalance.jobs.doctor.doctor import doctor_of
    from gpubalance.render.doctor import checkup_text
    from gpubalance.results.checkup import Checkups

    hosts = connect_hosts(gpus.hosts, gpus.via)
    out = Output(output, quiet=output.quiet)
    progress, model = Progress(quiet=output.quiet), settings.model or None
    given = {"--simulate": gpus.simulate, "--model": model}
    words = [
        word for option, value in given.items() if value is not None for word in (option, value)
    ]

    def text(found: Checkup | Checkups) -> str:
        return checkup_text(found, width(), _paint())

    with out.left_by_an_error(text):
        if hosts:
            found: Checkup | Checkups = doctor_of(hosts, words, gpus.gpus, progress)
        else:
            found = doctor_job(gpus.simulate, gpus.gpus, model, progress)
        for checkup in found.hosts if isinstance(found, Checkups) else [found]:
            _refuse_failure(checkup, found)
    out.give(found, text)


def _refuse_failure(checkup: Checkup, found: Checkup | Checkups) -> None:
    """Raises EnvironmentFault that names the failure to mend first, which is told in full with the
    other checks.
    """
    first = checkup.first_failure
    if first is not None:
        where = f" on {checkup.host}" if checkup.host else ""
        raise EnvironmentFault(
            f"this failed{where}: {first.what}",
            remedy="fix it first: what to do stands with it above",
            partial=found,
        )


def _paint() -> Paint:
    """A function that colours a status on stdout, unless that is no terminal or colours are off."""
    from rich.color import ColorSystem
    from rich.console import Console
    from rich.style import Style

    console = Console(file=sys.stdout)  # respects NO_COLOR, TERM=dumb and FORCE_COLOR
    if console.color_system is None or console.no_color:
        return lambda _, word: word
    styles = {"ok": "green", "warning": "yellow", "failure": "bold red", "skipped": "dim"}
    return lambda status, word: Style.parse(styles[status]).render(
        word, color_system=ColorSystem.STANDARD
    )
