"""What every command that measures does, from its request to its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpubalance.cli.board import board_in
from gpubalance.cli.dry_run import dry_run
from gpubalance.cli.options import Reporting, RunControl
from gpubalance.cli.output import Output
from gpubalance.cli.progress import Progress
from gpubalance.cli.traces import name_now, tracing_to
from gpubalance.devices.machine import Machine, held
from gpubalance.devices.warnings import machine_warnings
from gpubalance.jobs.events import Event, Watch
from gpubalance.jobs.keep.command_journal import journal_of
from gpubalance.jobs.phases import Phases
from gpubalance.results.common import Warning_
from gpubalance.settings.requests import IndependentRequest, MeasureRequest, RunRequest
from gpubalance.workers.hosts import connected


def measured(
    machine: Machine,
    request: MeasureRequest,
    control: RunControl,
    reporting: Reporting,
    job: Callable[..., Any],
    text: Callable[[Any], str],
    noted: Sequence[Warning_] = (),
    watch: Watch | None = None,
) -> Any:
    """Locks the GPUs that the job uses, runs it, shows its progress, and outputs its result.

    The result, which is returned, gets the `noted` warnings and those of the machine. `watch` gets
    the same events as the progress, and no text is shown then. A dry run only outputs the estimate,
    and returns None. Raises whatever ends the job.
    """
    used = request.without_idle.devices if isinstance(request, RunRequest) else request.devices
    warnings = [*machine_warnings(machine, used, strict=control.strict), *noted]
    if control.dry_run and not isinstance(request, RunRequest | IndependentRequest):
        dry_run(request, reporting)
        return None

    shown = text if watch is None else lambda _: ""
    output = Output(reporting, shown, warnings, resumed=control.resume)
    name = name_now(type(request).__name__.removesuffix("Request").lower(), reporting)
    request = request.model_copy(update={"tracing": tracing_to(reporting.trace, name)})
    with (
        held(used),
        connected(used),
        board_in(reporting.tensorboard, name, request.settings, quiet=reporting.quiet) as board,
        journal_of(request, resume=control.resume) as journal,
    ):
        output.check_continues(journal)
        with output.left_by_an_error(), Progress(quiet=reporting.quiet) as progress:
            listeners = [listener for listener in (progress, watch, board) if listener is not None]

            def notify(event: Event) -> None:
                for listener in listeners:
                    listener(event)

            phases = Phases(request, notify, resumed=journal.resumed)
            result = job(request, phases, journal)
            phases.keep()
        return output.give(result, journal)
