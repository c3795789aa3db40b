"""What every command that measures does before its job, and with its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from gpubalance.cli.board import board_in
from gpubalance.cli.options import Reporting, RunControl
from gpubalance.cli.output import Output
from gpubalance.cli.progress import Progress
from gpubalance.cli.traces import name_now, tracing_to
from gpubalance.devices.machine import Machine, held
from gpubalance.devices.warnings import machine_warnings
from gpubalance.jobs.events import Event, Watch
from gpubalance.jobs.keep.command_journal import journal_of
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.phases import Phases
from gpubalance.results.common import Warning_
from gpubalance.settings.requests import MeasureRequest, RunRequest
from gpubalance.workers.hosts import connected

Asked = TypeVar("Asked", bound=MeasureRequest)


@dataclass
class Job(Generic[Asked]):
    """What a command's job is given, and the result that it gives."""

    request: Asked
    watch: Watch
    journal: Journal
    result: Any = None


@contextmanager
def job_of(
    machine: Machine,
    request: Asked,
    control: RunControl,
    reporting: Reporting,
    text: Callable[[Any], str],
    noted: Sequence[Warning_] = (),
    watch: Watch | None = None,
) -> Iterator[Job[Asked]]:
    """Locks the GPUs and shows progress while the block runs the job; then outputs its result.

    The block sets the job's `result`, which gets the `noted` warnings and those of the machine. Of
    an error the partial result is output. `watch` gets the same events as the progress, and no
    text is shown then.
    """
    used = request.devices
    if isinstance(request, RunRequest):
        used = request.without_idle.devices
    warnings = [*machine_warnings(machine, used, strict=control.strict), *noted]
    shown = text if watch is None else lambda _: ""
    output = Output(reporting, shown, warnings, resumed=control.resume)
    name = name_now(type(request).__name__.removesuffix("Request").lower(), reporting)
    tracing = tracing_to(reporting.trace, name)
    request = cast("Asked", request.model_copy(update={"tracing": tracing}))
    with (
        held(used),
        connected(used),
        board_in(
            reporting.tensorboard, name, request.settings, quiet=reporting.quiet
        ) as board,
        journal_of(request, resume=control.resume) as journal,
    ):
        output.check_continues(journal)
        with output.left_by_an_error(), Progress(quiet=reporting.quiet) as progress:
            listeners = [
                listener
                for listener in (progress, watch, board)
                if listener is not None
            ]

            def notify(event: Event) -> None:
                for listener in listeners:
                    listener(event)

            phases = Phases(request, notify, resumed=journal.resumed)
            job = Job(request, phases, journal)
            yield job
            phases.keep()
        job.result = output.give(job.result, journal)
