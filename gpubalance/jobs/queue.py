"""`queue`: runs commands, one at a time on each device, each where it ends soonest."""

from __future__ import annotations

import re
import signal
import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpubalance.devices.environment import worker_environment
from gpubalance.errors import (
    RESUME,
    EnvironmentFault,
    GpubalanceError,
    Interrupted,
    PartialResult,
)
from gpubalance.jobs.events import (
    CommandBegun,
    CommandEnded,
    Doing,
    QueueSeen,
    Watch,
    one_at_a_time,
)
from gpubalance.jobs.journal import Journal, content_key, free_journal
from gpubalance.jobs.saved import find_device, kept_probes
from gpubalance.planning.queue import Outlook, outlook, relative_times
from gpubalance.remedies import known_error
from gpubalance.results.common import now
from gpubalance.results.queue import (
    Queue,
    QueuedCommand,
    QueueShare,
    RunningCommand,
    Try,
)
from gpubalance.settings.device import Device
from gpubalance.settings.record import Record
from gpubalance.settings.requests import PIPE, QueueRequest
from gpubalance.system.deadlines import signals_held
from gpubalance.system.state import current_folder, delete_oldest, state_folder
from gpubalance.text import clean
from gpubalance.workers.agent import GRACE_S
from gpubalance.workers.hosts import Script

_LEAST_S = 1e-3  # its logarithm is taken


def ended_seconds(devices: int, commands: Iterable[QueuedCommand]) -> list[list[float]]:
    """The seconds of the commands that ended well on each device."""
    ended_s: list[list[float]] = [[] for _ in range(devices)]
    for command in commands:
        if command.ended_well and command.tries:
            last = command.tries[-1]
            ended_s[last.device].append(max(_LEAST_S, last.duration_s))
    return ended_s


def result_of(
    devices: tuple[Device, ...],
    commands: Sequence[QueuedCommand],
    rates: Sequence[float] | None,
    running_s: float | None,
) -> Queue:
    """The record of these commands.

    `rates` are what the devices gave alone, None if unknown. `running_s` is how long the queue has
    run, None if no command runs any more.
    """
    tries: list[Try] = []
    for command in commands:
        if not command.resumed:
            tries += command.tries
    makespan_s = running_s
    if makespan_s is None:
        makespan_s = max((attempt.end_s for attempt in tries), default=0.0)
    shares = _shares(
        relative_times(ended_seconds(len(devices), commands), rates), tries
    )
    alone_s = _alone_s(shares, tries)
    return Queue(
        created=now(),
        devices=devices,
        commands=tuple(commands),
        shares=shares,
        makespan_s=makespan_s,
        alone_s=alone_s,
        speedup=alone_s and alone_s / makespan_s,
        complete=all(command.ended_well for command in commands),
    )


def _shares(
    times: Sequence[float | None], tries: Sequence[Try]
) -> tuple[QueueShare, ...]:
    """What each device did; `times` are how long they take for the same command."""
    fastest = min(filter(None, times), default=0.0)
    shares = []
    for device, time_s in enumerate(times):
        own = [attempt for attempt in tries if attempt.device == device]
        share = QueueShare(
            device=device,
            ended_well=sum(attempt.exit == 0 for attempt in own),
            busy_s=sum(attempt.duration_s for attempt in own),
            speed=fastest / time_s if time_s else None,
        )
        shares.append(share)
    return tuple(shares)


def _alone_s(shares: Sequence[QueueShare], tries: Sequence[Try]) -> float | None:
    """How long the fastest device would have taken for what ended well; None if unknown."""
    alone_s = 0.0
    for attempt in tries:
        if attempt.exit == 0:
            speed = shares[attempt.device].speed
            if not speed or not attempt.duration_s:
                return None
            alone_s += speed * attempt.duration_s
    return alone_s or None


_TAIL_LINES = 10
_LONGEST_LINE = 300
_NO_MEMORY = re.compile("|".join(known_error("out-of-memory").signs))
_FIELD = re.compile(r"(?<!\$)\{(?:device|number)\}")  # a shell's ${number} is its own
_LOOKS_EVERY_S = 0.25
_SHELL = "import os, sys; os.dup2(1, 2); os.execv('/bin/sh', ['sh', '-c', sys.argv[1]])"
_FROM_WORKERS = ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "PYTHONUNBUFFERED")


class CommandLog:
    """Where a command's output goes: its file, as long as that can be written, and its last lines.

    `path` is None if the file could not be written. `lacks_memory`: a line says that a device's
    memory ran out.
    """

    def __init__(self, path: Path, watch: Watch, *, append: bool) -> None:
        self.path: str | None = str(path)
        self.lacks_memory = False
        self._lines = deque[str](maxlen=_TAIL_LINES)
        self._last = ""
        self._watch = watch
        mode = "a" if append else "w"
        try:
            self._file = path.open(mode, encoding="utf-8", buffering=1)
        except OSError as error:
            self._give_up(error)

    def take(self, line: str, *_: str) -> None:
        """Takes a line that the command printed."""
        self._lines.append(line)
        if _NO_MEMORY.search(line):
            self.lacks_memory = True
        if line.strip():
            self._last = line
        try:
            if self.path:
                self._file.write(line + "\n")
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        why = f"can't write {self.path}: {error.strerror}"
        self._watch(Doing(f"{why}: the command continues without a log", stays=True))
        self.path = None

    @property
    def last(self) -> str:
        """The last line that is not blank."""
        return clean(self._last)

    def tail(self) -> tuple[str, ...]:
        """The last lines."""
        return tuple(clean(line, _LONGEST_LINE) for line in self._lines)


@dataclass(frozen=True)
class _Running:
    command: QueuedCommand
    script: Script
    log: CommandLog
    began_s: float
    code: Future[int]


class Commands:
    """Runs the commands of a queue, and knows how each of them stands."""

    def __init__(
        self,
        request: QueueRequest,
        logs: Path,
        watch: Watch,
        journal: Journal,
        threads: ThreadPoolExecutor,
    ) -> None:
        self._request = request
        self._devices = request.devices
        self._logs = logs
        self._watch = watch
        self._journal = journal
        journal.watch = watch
        self._threads = threads
        self._began_s = time.monotonic()
        self._commands = self._with_earlier()  # as they stand, by number
        self._waiting = deque(
            command for command in self._commands.values() if not command.resumed
        )
        self._retries = deque[QueuedCommand]()  # on the device with the most memory
        self._running: dict[int, _Running] = {}  # by device
        self._rates = _rates_by_probe(self._devices)
        self._memory = [device.memory_bytes or 0 for device in self._devices]
        self._largest = self._memory.index(max(self._memory))

    def _with_earlier(self) -> dict[int, QueuedCommand]:
        """All commands; those that ended well in an earlier run as they ended then."""
        earlier = self._journal.load_all(QueuedCommand)
        devices = self._journal.load_all(Device)
        commands = {}
        for number, text in enumerate(self._request.commands, 1):
            command = QueuedCommand(number=number, command=text)
            key = _key(number, text)
            if key in earlier:
                command = self._resumed(earlier[key], devices.get(key))
            commands[number] = command
        return commands

    def _resumed(self, earlier: QueuedCommand, device: Device | None) -> QueuedCommand:
        """A command that ended well before, with its last try if that device is here too."""
        tries = []
        if device in self._devices and earlier.tries:
            place = self._devices.index(device)
            tries = [earlier.tries[-1].model_copy(update={"device": place})]
        return earlier.model_copy(update={"resumed": True, "tries": tuple(tries)})

    def run(self) -> None:
        """Runs all of them.

        An interrupt is passed on to those that run, which have ended when it is raised on.
        """
        resumed = sum(command.resumed for command in self._commands.values())
        if self._request.resume:
            text = f"{resumed} of {len(self._commands)} commands had succeeded before"
            self._watch(Doing(text, stays=True))
        try:
            while self._waiting or self._retries or self._running:
                self._start()
                wait(self._exit_codes(), _LOOKS_EVERY_S, FIRST_COMPLETED)
                self._report()
                self._end_finished()
        except KeyboardInterrupt as interrupt:
            for running in self._running.values():
                running.script.signal(getattr(interrupt, "number", signal.SIGINT))
            wait(self._exit_codes(), GRACE_S + 1)
            raise
        finally:
            for running in self._running.values():
                running.script.end()

    def result(self) -> Queue:
        """What has come of them so far."""
        running_s = time.monotonic() - self._began_s if self._running else None
        return result_of(
            self._devices, list(self._commands.values()), self._rates, running_s
        )

    def _exit_codes(self) -> list[Future[int]]:
        return [running.code for running in self._running.values()]

    def _start(self) -> None:
        """Starts commands on free devices, unless all ends sooner without one there."""
        while True:
            free = [n for n in range(len(self._devices)) if n not in self._running]
            if self._retries and self._largest in free:
                self._begin(self._largest, self._retries.popleft())
                continue
            if not free or not self._waiting:
                return
            device: int | None = free[0]
            if not self._request.pull:
                device = self._outlook().starts(free, len(self._waiting))
            if device is None:
                return
            self._begin(device, self._waiting.popleft())

    def _begin(self, number: int, command: QueuedCommand) -> None:
        """Starts a command on a device. One that can't be started has failed, it alone."""
        path = self._logs / f"{command.number:03}.log"
        log = CommandLog(path, self._watch, append=bool(command.tries))
        try:
            with signals_held():
                self._running[number] = self._started(number, command, log)
        except EnvironmentFault as error:
            self._note(number, command, log, self._try(number, time.monotonic(), error))
            return
        self._commands[command.number] = command.model_copy(update={"log": log.path})
        self._watch(CommandBegun(self._devices[number], command))

    def _started(
        self, number: int, command: QueuedCommand, log: CommandLog
    ) -> _Running:
        """The command, started. Raises EnvironmentFault, and then nothing of it is left."""
        device = self._devices[number]
        fields = {"{device}": device.label, "{number}": str(command.number)}
        text = _FIELD.sub(lambda field: fields[field[0]], command.command)
        script = Script([device])
        try:
            script.start(_environment(device), ["-c", _SHELL, text])
            code = self._threads.submit(script.code, log.take)
        except RuntimeError as error:  # there is no room for a thread
            script.end()
            raise EnvironmentFault(f"can't follow its output: {error}") from None
        except EnvironmentFault:
            script.end()
            raise
        return _Running(command, script, log, time.monotonic(), code)

    def _end_finished(self) -> None:
        for device, running in list(self._running.items()):
            if running.code.done():
                with signals_held():
                    self._end(device, running)

    def _end(self, device: int, running: _Running) -> None:
        """Takes note of how a command ended."""
        running.script.end()
        try:
            ending: int | GpubalanceError = running.code.result()
        except GpubalanceError as error:  # nothing came of its process, or no more
            ending = error
        del self._running[device]
        lacked_memory = ending != 0 and running.log.lacks_memory
        last = self._try(device, running.began_s, ending, lacked_memory=lacked_memory)
        self._note(device, running.command, running.log, last)

    def _try(
        self,
        device: int,
        began_s: float,
        ending: int | GpubalanceError,
        *,
        lacked_memory: bool = False,
    ) -> Try:
        """A try that has ended now, with its exit code or with why there is none."""
        code = fault = None
        if isinstance(ending, GpubalanceError):
            fault = clean("; ".join(filter(None, (ending.message, ending.remedy))))
        else:
            code = ending
        return Try(
            device=device,
            start_s=began_s - self._began_s,
            end_s=time.monotonic() - self._began_s,
            exit=code,
            fault=fault,
            out_of_memory=lacked_memory,
        )

    def _note(
        self, device: int, command: QueuedCommand, log: CommandLog, last: Try
    ) -> None:
        """Adds a command's last try.

        It is tried once more if it lacked memory that another device has.
        """
        is_first = not command.tries
        tail = () if last.exit == 0 else log.tail()
        changes = {"tries": (*command.tries, last), "log": log.path, "tail": tail}
        command = command.model_copy(update=changes)
        self._commands[command.number] = command
        if command.ended_well:
            key = _key(command.number, command.command)
            self._journal.add(key, self._devices[device])
            self._journal.add(key, command)
        next_on = None
        has_less = self._memory[self._largest] > self._memory[device]
        if last.out_of_memory and is_first and has_less:
            self._retries.append(command)
            next_on = self._devices[self._largest]
        self._watch(CommandEnded(self._devices[device], command, next_on))

    def _ended_s(self) -> list[list[float]]:
        return ended_seconds(len(self._devices), self._commands.values())

    def _outlook(self) -> Outlook:
        """What to expect of the devices.

        The largest is not free before what is tried once more there.
        """
        ended_s = self._ended_s()
        running_s: list[float | None] = [None] * len(self._devices)
        for device, running in self._running.items():
            running_s[device] = time.monotonic() - running.began_s
        expected = outlook(ended_s, running_s, relative_times(ended_s, self._rates))
        free_s = list(expected.free_s)
        free_s[self._largest] += len(self._retries) * (
            expected.each_s[self._largest] or 0.0
        )
        return Outlook(free_s, expected.each_s)

    def _report(self) -> None:
        now_running = []
        for device, running in sorted(self._running.items()):
            command = RunningCommand(
                device, running.command, running.began_s, running.log.last
            )
            now_running.append(command)
        waiting = len(self._waiting) + len(self._retries)
        ended = len(self._commands) - waiting - len(now_running)
        left_s = None
        if any(self._ended_s()):
            left_s = self._outlook().rest_s(len(self._waiting))
        self._watch(
            QueueSeen(self._devices, waiting, ended, tuple(now_running), left_s)
        )


def _key(number: int, command: str) -> str:
    return f"{number} {command}"


def _rates_by_probe(devices: Sequence[Device]) -> tuple[float, ...] | None:
    """The best that each device gave alone in the latest probe of all of them; None without one."""
    for probe in kept_probes():
        rates = []
        for device in devices:
            record = find_device(probe, device)
            if record and record.solo_best:
                rates.append(record.solo_best.throughput)
        if len(rates) == len(devices):
            return tuple(rates)
    return None


def _environment(device: Device) -> dict[str, str | None]:
    """What shows a command its device alone, and lets its output be seen as it comes."""
    worker = worker_environment([device])
    return {
        **{name: worker[name] for name in _FROM_WORKERS},
        "GPUBALANCE_DEVICE": device.label,
    }


_KEPT = 100  # queues


def queue(request: QueueRequest, logs: Path, watch: Watch, journal: Journal) -> Queue:
    """Runs the commands, with their output in the folder `logs`.

    Raises PartialResult if some failed, Interrupted by a signal, both with the result.
    """
    journal.begin_anew()
    # It can be resumed even if nothing has ended well.
    journal.add("", _Begun(commands=request.commands))
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


class _Begun(Record):
    """In a journal: the commands of the queue that was last begun or resumed."""

    commands: tuple[str, ...]


def journal_of_queue(request: QueueRequest) -> Journal:
    """The journal of the commands of a file, whichever they are and on which devices they run.

    What a pipe brings has no name: it continues the queue with most of its commands, or replaces it
    if that has half of its own in common with it, and leaves others alone.
    """
    simulated = any(device.simulated for device in request.devices)
    key = content_key("queue", request.source, str(current_folder()), simulated)

    def rank(free: str) -> tuple[int, bool, float]:
        begun = Journal.last_left(free, _Begun)
        commands = begun.commands if begun else ()
        in_common = sum(map(str.__eq__, commands, request.commands))
        if not request.resume and in_common < len(commands) / 2:
            in_common = 0
        left_at = Journal.left_at(free)
        return in_common, begun is None, left_at if in_common else -left_at

    return free_journal(key, request.resume, rank if request.source == PIPE else None)


def ended_before(request: QueueRequest) -> tuple[int, ...]:
    """The numbers of the commands that the queue would not run again."""
    journal = journal_of_queue(request)
    journal.close()
    earlier = journal.load_all(QueuedCommand)
    commands = enumerate(request.commands, 1)
    return tuple(number for number, text in commands if _key(number, text) in earlier)


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
