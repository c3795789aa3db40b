"""`queue` as a whole: runs all commands, and says how they ended."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from gpubalance.errors import RESUME, Interrupted, PartialResult
from gpubalance.jobs.events import Watch, one_at_a_time
from gpubalance.jobs.keep.journal import Journal, content_key, free_journal
from gpubalance.jobs.queue.commands import Commands
from gpubalance.results.queue import Queue
from gpubalance.settings.requests import QueueRequest
from gpubalance.system.state import current_folder, delete_oldest, state_folder

_KEPT = 100  # queues


def queue(request: QueueRequest, logs: Path, watch: Watch, journal: Journal) -> Queue:
    """Runs the commands, with their output in the folder `logs`.

    Raises PartialResult if some failed, Interrupted by a signal, both with the result.
    """
    with ThreadPoolExecutor(len(request.devices)) as threads:
        commands = Commands(request, logs, one_at_a_time(watch), journal, threads)
        try:
            commands.run()
        except KeyboardInterrupt as interrupt:
            raise _interrupted(interrupt, commands.result()) from None
    result = commands.result()
    if result.failed:
        numbers = ", ".join(str(command.number) for command in result.failed)
        what = (
            f"{len(result.failed)} of {len(result.commands)} commands failed: {numbers}"
        )
        raise PartialResult(what, remedy=f"fix them; {RESUME}", partial=result)
    return result


def _interrupted(interrupt: KeyboardInterrupt, result: Queue) -> Interrupted:
    finished = sum(command.ended_well for command in result.commands)
    remedy = (
        f"{finished} of {len(result.commands)} commands had finished; the running ones "
        f"were stopped; {RESUME}"
    )
    return Interrupted.by(interrupt, partial=result, remedy=remedy)


def journal_of_queue(request: QueueRequest) -> Journal:
    """The journal of the commands of a file, whichever they are and on which devices they run."""
    simulated = any(device.simulated for device in request.devices)
    key = content_key("queue", request.source, str(current_folder()), simulated)
    return free_journal(key, request.resume)


def logs_of(request: QueueRequest, journal: Journal) -> Path:
    """The folder for what the commands print: as asked for, else one of the journal's name."""
    if request.logs is not None:
        return request.logs
    queues = state_folder("queues")
    delete_oldest(queues, "*", _KEPT)
    logs = queues / journal.path.stem
    with suppress(OSError):  # on a full disk commands have no logs
        logs.mkdir(exist_ok=True)
    return logs
