"""What every command that measures does, from its request to its result."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from gpubalance.cli.board import board_in
from gpubalance.cli.next_command import Following
from gpubalance.cli.options import Reporting, RunControl
from gpubalance.cli.output import Output, make_folder, summed_up
from gpubalance.cli.progress import Progress
from gpubalance.devices.hosts import are_reached
from gpubalance.devices.machine import Machine, held
from gpubalance.errors import UsageError
from gpubalance.jobs.events import Event, Watch
from gpubalance.jobs.keep.journal import journal_of
from gpubalance.jobs.phases import Phases, estimate
from gpubalance.numbers.units import format_duration
from gpubalance.render.table import WIDTH, Part, prose, table
from gpubalance.results.common import Warning_
from gpubalance.results.estimate import Estimate
from gpubalance.results.records import is_estimate
from gpubalance.settings.choices import TRACES
from gpubalance.settings.measuring import Tracing
from gpubalance.settings.requests import (
    BalanceRequest,
    IndependentRequest,
    LayersRequest,
    MeasureRequest,
    ProbeRequest,
    RunRequest,
)
from gpubalance.workers.hosts import connected


def measured(
    machine: Machine,
    request: MeasureRequest,
    care: RunControl,
    reporting: Reporting,
    job: Callable[..., Any],
    told: Callable[[Any], Iterable[Part]],
    following: Callable[[Any], Following],
    noted: Sequence[Warning_] = (),
    watch: Watch | None = None,
) -> Any:
    """Locks the GPUs that the job uses, runs it, shows its progress, and outputs its result as text
    and JSON.

    The text is what is `told` of the result, its warnings, and what can follow: a command, and the
    lines of a script. The result, which is returned, gets the `noted` warnings and those of the
    machine. `watch` gets the same events as the progress, and no text is shown then. A dry run only
    outputs the estimate, and returns None. Raises whatever ends the job.
    """
    used = (request.without_idle if isinstance(request, RunRequest) else request).devices
    warnings = (*machine.warnings(used, strict=care.strict), *noted)
    if care.dry_run and not isinstance(request, RunRequest | IndependentRequest):
        _estimate(request, reporting)
        return None

    def text(result: Any) -> str:
        return "" if watch else summed_up(result, told(result), following(result))

    out = Output(reporting, quiet=reporting.quiet, resumed=care.resume)
    name = _name_now(type(request), reporting.tensorboard, reporting.trace)
    request = request.model_copy(update={"tracing": _tracing_to(reporting.trace, name)})
    with (
        held(used),
        connected(used),
        board_in(reporting.tensorboard, name, request.settings, quiet=reporting.quiet) as board,
        journal_of(request, resume=care.resume) as kept,
    ):
        out.check_goes_on(kept)
        with out.left_by_an_error(text, warnings), Progress(quiet=reporting.quiet) as tell:
            listeners = [one for one in (tell, watch, board) if one is not None]

            def heard(event: Event) -> None:
                for listener in listeners:
                    listener(event)

            phases = Phases(request, heard, resumed=kept.resumed)
            result = job(request, phases, kept)
            phases.keep()
        return out.give(result, text, warnings, kept)


def _estimate(request: ProbeRequest | BalanceRequest | LayersRequest, reporting: Reporting) -> None:
    """Outputs what the command would do and how long that takes. It replaces no result, even with
    --overwrite.
    """
    path = reporting.output
    if path is not None and path.is_file() and not is_estimate(path):
        raise UsageError(
            f"{path} exists, and --dry-run measures nothing to replace it with",
            remedy="give another -o",
        )
    kept = f"; this estimate is in {path}" if path else ""
    Output(reporting, quiet=True).give(
        estimate(request), lambda found: _estimate_text(found) + kept
    )


def _estimate_text(expected: Estimate) -> str:
    """Each phase with about how long it would take, and how long all of them."""
    request = expected.request
    devices = ", ".join(f"{device.label} {device.name}" for device in request.devices)
    lines = prose(f"{request.settings.model}, {request.settings.precision}; {devices}", WIDTH)
    if expected.probed:
        lines += prose(
            f"planned with the probe of {expected.probed}; --fresh would make a new one",
            WIDTH,
            "  ",
        )
    rows = [
        ("", ""),
        *((one.name, f"about {format_duration(one.seconds)}") for one in expected.phases),
    ]
    lines += table(rows, indent="  ")[1:]
    return "\n".join([*lines, f"about {format_duration(expected.seconds)} in all; nothing was run"])


def _name_now(request: type[MeasureRequest], *folders: Path | None) -> str:
    """`run-20261121-142510`, local time, with a number if one of the folders already
    has that name.
    """
    stem = time.strftime(f"{request.__name__.removesuffix('Request').lower()}-%Y%m%d-%H%M%S")
    names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    below = [folder / place for folder in folders if folder is not None for place in (".", TRACES)]
    return next(name for name in names if not any((folder / name).exists() for folder in below))


def _tracing_to(folder: Path | None, name: str) -> Tracing | None:
    """The trace of that name, in a folder on the workers' hosts.

    Raises EnvironmentFault if nothing can be written there.
    """
    if folder is None:
        return None
    if not are_reached():
        make_folder("--trace", folder)
    return Tracing(folder=str(folder.absolute()), name=name)
