"""`gpubalance queue`."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Annotated

import typer

from gpubalance.cli.options import Devices, DryStart, Unwatched
from gpubalance.cli.parameters import Without
from gpubalance.settings.requests import PIPE, Queueing, QueueRequest

_MOST_BYTES = 16 << 20
_WRITE = "write one command a line, as you type them in a shell: gpubalance guide queue"
_WHOLE = "close the quotes, and write each command on one line"
# Words that a shell can read, unless the first one begins a loop or a condition
_PLAIN = re.compile(r"(?!(?:for|while|until|if|case)\b)[\w ./=,:@%+-]*")
CommandsFile = Annotated[
    str,
    typer.Argument(
        metavar="COMMANDS.txt",
        help="A file with one command per line; - reads stdin.",
    ),
]


def queue(
    commands: CommandsFile,
    gpus: Annotated[Devices, Without("hosts", "via")],
    how: Queueing,
    dry: DryStart,
    reporting: Unwatched,
) -> None:
    """Each command runs on the device with which the whole queue ends earliest.

    Example: gpubalance queue --gpus 0 1 --logs logs/ trials.txt
    """
    from gpubalance.cli.job import dry_run_of_queue
    from gpubalance.cli.output import Output, summed_up
    from gpubalance.cli.progress import Progress
    from gpubalance.devices.machine import held, machine_warnings
    from gpubalance.jobs.queue import ended_before, journal_of_queue, logs_of
    from gpubalance.jobs.queue import queue as queue_job
    from gpubalance.render.queue import queue_summary
    from gpubalance.results.queue import Queue
    from gpubalance.system.state import absolute

    def text(result: Queue) -> str:
        return summed_up(result, queue_summary(result))

    lines = _read(commands)
    machine = gpus.machine()
    source = PIPE
    if commands != PIPE and Path(commands).is_file():
        source = str(absolute(Path(commands)))
    request = QueueRequest(
        **dict(how), devices=machine.select(gpus.gpus), commands=lines, source=source
    )
    if dry.dry_run:
        dry_run_of_queue(request, ended_before(request), reporting)
        return
    warnings = machine_warnings(machine, request.devices, strict=False)
    output = Output(reporting, text, warnings, resumed=how.resume)
    with held(request.devices), journal_of_queue(request) as journal:
        output.check_continues(journal)
        if how.logs is not None:
            _check_logs(how.logs, overwrite=reporting.overwrite or how.resume)
        with output.left_by_an_error(), Progress(quiet=reporting.quiet) as progress:
            result = queue_job(request, logs_of(request, journal), progress, journal)
        output.give(result, journal)
        journal.stays = True  # lines may be added, and only they are run by --resume


def _read(commands: str) -> tuple[str, ...]:
    """The commands. Raises BadInput for what is no file of commands."""
    from gpubalance.errors import BadInput
    from gpubalance.system.files import content_of
    from gpubalance.text import clean

    name = commands
    path: Path | None = Path(commands)
    if commands == PIPE:
        name = "stdin"
        path = None
    content = content_of(path, "a file of commands", _MOST_BYTES, _WRITE)
    text = content.decode("utf-8-sig", errors="replace")
    if "\0" in text or "\ufffd" in text:
        raise BadInput(f"{name} is not text", remedy=_WRITE)
    lines = []
    for line in map(str.strip, text.split("\n")):
        if line and not line.startswith("#"):
            lines.append(line)
    if not lines:
        raise BadInput(f"{name} contains no command", remedy=_WRITE)
    for line in lines:
        fault = _fault(line)
        if fault:
            raise BadInput(
                f"{name}: the shell cannot parse `{clean(line)}`: {clean(fault)}",
                remedy=_WHOLE,
            )
    return tuple(lines)


def _fault(line: str) -> str:
    """What a shell finds wrong with a line; empty if nothing."""
    if (len(line) - len(line.rstrip("\\"))) % 2:
        return "the command continues on the next line"
    if _PLAIN.fullmatch(line):
        return ""
    # Its stdin takes a line of any length, in any locale.
    checked = subprocess.run(
        ["/bin/sh", "-n"], input=line.encode(), capture_output=True, check=False
    )
    if checked.returncode == 0:
        return ""
    return checked.stderr.decode(errors="replace").strip().rpartition(": ")[2]


def _check_logs(folder: Path, *, overwrite: bool) -> None:
    """Makes the folder.

    Raises EnvironmentFault if nothing can be written there; UsageError if its name is not UTF-8, or
    if it holds another queue's logs.
    """
    from gpubalance.cli.output import make_folder, refuse_not_utf8
    from gpubalance.errors import UsageError

    refuse_not_utf8("--logs", folder)
    make_folder("--logs", folder)
    logs = sorted(folder.glob("[0-9][0-9][0-9]*.log"))
    if logs and not overwrite:
        raise UsageError(
            f"--logs {folder} already holds logs of a queue: {logs[0].name}",
            remedy="give another --logs, --resume or --overwrite",
        )
