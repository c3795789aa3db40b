"""What every command that measures does before its job and with its result; `--dry-run`.

It uses TensorBoard's own package without TensorFlow, which this process never loads.
"""

from __future__ import annotations

import itertools
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from gpubalance.cli.options import Reporting, RunControl
from gpubalance.cli.output import (
    Output,
    make_folder,
    refuse_not_utf8,
    say,
    unwritable,
    width,
)
from gpubalance.cli.progress import Progress
from gpubalance.devices.hosts import are_reached
from gpubalance.devices.machine import Machine, held, machine_warnings
from gpubalance.errors import EnvironmentFault, UsageError
from gpubalance.jobs import events
from gpubalance.jobs.events import Event, Watch
from gpubalance.jobs.journal import Journal, journal_of
from gpubalance.jobs.phases import Phases, estimate, estimate_of_queue
from gpubalance.numbers.units import NO_TIME
from gpubalance.render.table import prose, table
from gpubalance.render.tensorboard import Summaries, Summary
from gpubalance.results.common import Warning_
from gpubalance.results.estimate import Estimate
from gpubalance.results.plan import Round
from gpubalance.results.probe import CurvePoint
from gpubalance.results.records import is_estimate
from gpubalance.results.run import Measurement
from gpubalance.settings.choices import TRACES
from gpubalance.settings.measuring import Tracing
from gpubalance.settings.requests import MeasureRequest, QueueRequest, RunRequest
from gpubalance.settings.settings import Settings
from gpubalance.text import clean, clean_lines
from gpubalance.workers.hosts import connected


def dry_run(
    machine: Machine,
    request: MeasureRequest,
    control: RunControl,
    reporting: Reporting,
) -> None:
    """Outputs the estimate. It replaces no result, even with --overwrite.

    Raises what the command would raise of the machine.
    """
    machine_warnings(machine, request.devices, strict=control.strict)
    _give(estimate(request), lambda result: _text(result, request), reporting)


def dry_run_of_queue(
    request: QueueRequest, resumed: tuple[int, ...], reporting: Reporting
) -> None:
    """Outputs the commands that a queue would run, and on which devices.

    Those with the numbers `resumed` it would not.
    """
    estimated = estimate_of_queue(request, resumed)
    _give(estimated, lambda result: _queue_text(result, request), reporting)


def _give(
    estimated: Estimate, text: Callable[[Estimate], str], reporting: Reporting
) -> None:
    path = reporting.output
    if path is not None and path.is_file() and not is_estimate(path):
        raise UsageError(
            f"{path} exists, and --dry-run does not overwrite a result with an "
            "estimate",
            remedy="give another -o",
        )
    place = f"; this estimate is in {path}" if path else ""
    output = Output(
        reporting, lambda result: text(result) + place, shows_progress=False
    )
    output.give(estimated)


def _queue_text(estimated: Estimate, request: QueueRequest) -> str:
    """Each command on a line, below the devices."""
    labels = ", ".join(f"{device.label} {device.name}" for device in request.devices)
    commands = len(request.commands)
    digits = len(str(commands))
    what = "1 command" if commands == 1 else f"{commands} commands"
    before = len(estimated.resumed)
    if before:
        what = f"{commands - before} of {what} ({before} succeeded before)"
    lines = prose(f"{what}, one at a time on {labels}", width())
    for number, command in enumerate(request.commands, 1):
        if number not in estimated.resumed:
            lines.append(f"  {number:{digits}}  {clean(command)}")
    lines.append("nothing was run")
    return "\n".join(lines)


def _text(estimated: Estimate, request: MeasureRequest) -> str:
    """Each phase with about how long it would take, and how long all of them."""
    settings = request.settings
    devices = [f"{device.label} {device.name}" for device in request.devices]
    lines = prose(
        f"{settings.model}, {settings.precision}; {', '.join(devices)}", width()
    )
    if estimated.probed:
        plan = f"planned with the probe of {estimated.probed}; --fresh would make a new one"
        lines += prose(plan, width(), "  ")
    no_head = ("", "")
    rows = [no_head]
    whole = NO_TIME
    for phase in estimated.phases:
        whole += phase.duration
        rows.append((phase.name, f"about {phase.duration}"))
    lines += table(rows, left=(0, 1), indent="  ")[1:]
    lines += _guessed(estimated)
    lines.append(f"about {whole} in all; nothing was run")
    return "\n".join(lines)


def _guessed(estimated: Estimate) -> list[str]:
    """Says which of the times come from no measurement, so that nobody relies on them."""
    guessed = [phase.name for phase in estimated.phases if phase.guessed]
    if not guessed:
        return []
    which = "these times are guesses"
    if len(guessed) < len(estimated.phases):
        count = "a guess" if len(guessed) == 1 else "guesses"
        which = f"{', '.join(guessed)}: {count}"
    known = "Nothing like it was measured on this machine yet"
    if estimated.probed:
        known = "So far only its probe was measured on this machine"
    why = (
        f"as is usual for small models. {known}, and a large model may take many "
        "times as long"
    )
    return prose(f"{which}, {why}", width())


# TensorBoard looks for this in a file's name. Other programs append the host's name; results name
# no host.
_NAME = "events.out.tfevents"
_FORMAT = "brain.Event:2"
_INSTALL = "pip install '.[tensorboard]' in gpubalance's checkout"


class Board:
    """A listener that writes events into files of its folder, one for each run of TensorBoard's.

    If it no longer can, as on a full disk, it stops, and the measurement goes on.
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        """Begins the command's own file. Raises OSError, and ImportError without TensorBoard."""
        self._folder = folder
        self._summaries = Summaries(settings, folder.name)
        self._writers = {"": _opened(folder)}
        self.error: OSError | None = None

    def __call__(self, event: events.Event) -> None:
        summaries = self._summaries
        now_s = time.time()
        match event:
            case events.WindowDone(_, _, name, devices, Measurement() as measured):
                self._write(summaries.window(name, devices, measured, now_s))
            case events.WindowDone(_, _, name, _, tuple() as windows):
                for window in windows:
                    self._write(summaries.own(name, window, now_s))
            case events.RecordDone(Round() as record, devices):
                self._write(summaries.round(record, devices, now_s))
            case events.RecordDone(CurvePoint() as point, (device,)):
                self._write(summaries.point(device, point, now_s))
            case events.DeviceDone():
                self._write(summaries.solo_done(event.device, now_s))

    def done(self) -> None:
        """Notes that the job has ended with a complete result."""
        self._write(self._summaries.done(time.time()))

    def _write(self, summaries: Sequence[Summary]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        if self.error is not None:
            return
        try:
            for run, wall_s, step, summary in summaries:
                if run not in self._writers:
                    self._writers[run] = _opened(self._folder / run)
                event = Event(wall_time=wall_s, step=step, summary=summary)
                self._writers[run].write(event.SerializeToString())
            for writer in self._writers.values():
                writer.flush()  # a file stays whole if the program is killed
        except OSError as error:
            self.error = error

    def close(self) -> None:
        """Closes the files."""
        try:
            for writer in self._writers.values():
                writer.close()
        except OSError as error:
            self.error = self.error or error


@contextmanager
def board_in(
    folder: Path | None, name: str, settings: Settings, *, quiet: bool
) -> Iterator[Watch | None]:
    """Yields a board, which listens to the job; None without a folder.

    The block measures and outputs the result; the files are below folder/name. Raises
    EnvironmentFault at the start if nothing can be written or TensorBoard's package is missing, and
    at the end if something could not be written.
    """
    if folder is None:
        yield None
        return
    try:
        board = Board(folder / name, settings)
    except ImportError as error:
        message = f"--tensorboard needs the package tensorboard: {error}"
        raise EnvironmentFault(message, remedy=_INSTALL) from None
    except OSError as error:
        raise unwritable("--tensorboard", folder, error) from None
    try:
        yield board
        board.done()
    finally:
        board.close()
        if not quiet:
            say(
                clean_lines(f"charts: tensorboard --logdir {shlex.quote(str(folder))}"),
                sys.stderr,
            )
    if board.error is not None:
        raise unwritable("--tensorboard", folder, board.error)


def _opened(folder: Path) -> Any:
    """The writer of a new file, which begins with its format."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    folder.mkdir(parents=True, exist_ok=True)
    now_s = time.time()
    file = folder / f"{_NAME}.{int(now_s):010}.{os.getpid()}"
    writer = RecordWriter(file.open("wb"))
    writer.write(Event(wall_time=now_s, file_version=_FORMAT).SerializeToString())
    return writer


def name_now(command: str, reporting: Reporting) -> str:
    """`run-20261121-142510`, local time, with a number if a folder already has that name."""
    stem = time.strftime(f"{command}-%Y%m%d-%H%M%S")
    folders = []
    for folder in (reporting.tensorboard, reporting.trace):
        if folder is not None:
            folders += [folder, folder / TRACES]
    name = stem
    for number in itertools.count(2):
        if not _has(folders, name):
            break
        name = f"{stem}-{number}"
    return name


def _has(folders: Sequence[Path], name: str) -> bool:
    return any((folder / name).exists() for folder in folders)


def tracing_to(folder: Path | None, name: str) -> Tracing | None:
    """The trace of that name, in a folder on the workers' hosts.

    Raises EnvironmentFault if nothing can be written there, UsageError if its name is not UTF-8.
    """
    if folder is None:
        return None
    refuse_not_utf8("--trace", folder)
    if not are_reached():
        make_folder("--trace", folder)
    return Tracing(folder=str(folder.absolute()), name=name)


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
