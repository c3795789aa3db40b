"""`queue`: runs commands, one at a time on each device, each where it ends soonest."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpubalance.errors import RESUME, Interrupted, PartialResult
from gpubalance.jobs.command_log import CommandLog
from gpubalance.jobs.events import (
    CommandBegun,
    CommandEnded,
    Doing,
    QueueSeen,
    Watch,
    one_at_a_time,
)
from gpubalance.jobs.keep.journal import Journal, content_key, free_journal
from gpubalance.jobs.keep.saved import find_device, kept_probes
from gpubalance.planning.queue import Outlook, outlook, relative_times
from gpubalance.results.common import now
from gpubalance.results.queue import Queue, QueuedCommand, QueueShare, RunningCommand, Try
from gpubalance.settings.device import Device
from gpubalance.settings.queueing import QueueRequest
from gpubalance.system.state import current_folder, delete_oldest, state_folder
from gpubalance.workers.hosts import Script
from gpubalance.workers.keeper import GRACE_S
from gpubalance.workers.process import signals_held, worker_environment

_LOOKS_EVERY_S = 0.25
_KEPT = 100  # queues
_SHELL = "import os, sys; os.dup2(1, 2); os.execv('/bin/sh', ['sh', '-c', sys.argv[1]])"
_FROM_WORKERS = ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "PYTHONUNBUFFERED")


@dataclass(frozen=True)
class _Running:
    command: QueuedCommand
    script: Script
    log: CommandLog
    began_s: float
    code: Future[int]


class _Commands:
    """The commands of a queue: which wait, which run where, and how the others ended."""

    def __init__(
        self,
        request: QueueRequest,
        logs: Path,
        watch: Watch,
        journal: Journal,
        threads: ThreadPoolExecutor,
    ) -> None:
        self._devices, self._pull = request.devices, request.pull
        self._logs, self._watch, self._journal, self._threads = logs, watch, journal, threads
        journal.watch = watch
        self._began_s = time.monotonic()
        every = (
            QueuedCommand(number=n, command=text) for n, text in enumerate(request.commands, 1)
        )
        left, where = journal.load_all(QueuedCommand), journal.load_all(Device)
        self._found = {
            one.number: self._resumed(one, left.get(_key(one)), where.get(_key(one)))
            for one in every
        }
        self._waiting = deque(one for one in self._found.values() if not one.resumed)
        self._again = deque[QueuedCommand]()  # on the device with the most memory
        self._running: dict[int, _Running] = {}
        self._rates = _rates_by_probe(self._devices)
        self._memory = [device.memory_bytes or 0 for device in self._devices]
        self._largest = self._memory.index(max(self._memory))

    def _resumed(
        self, one: QueuedCommand, left: QueuedCommand | None, on: Device | None
    ) -> QueuedCommand:
        """The command as an earlier run ended it `on` a device, with that try if the device is here
        too.
        """
        if left is None:
            return one
        tries = left.tries[-1:] if on in self._devices else ()
        here = [last.model_copy(update={"device": self._devices.index(on)}) for last in tries]
        return left.model_copy(update={"resumed": True, "tries": tuple(here)})

    def run(self) -> None:
        """Runs all of them. An interrupt is passed on to those that run, which have ended when it
        is raised on.
        """
        resumed = sum(one.resumed for one in self._found.values())
        if resumed:
            self._watch(
                Doing(f"{resumed} of {len(self._found)} commands had succeeded before", stays=True)
            )
        try:
            while self._waiting or self._again or self._running:
                self._start()
                codes = [one.code for one in self._running.values()]
                wait(codes, _LOOKS_EVERY_S, FIRST_COMPLETED)
                self._tell()
                for device, one in list(self._running.items()):
                    if one.code.done():
                        with signals_held():
                            self._end(device, one)
        except KeyboardInterrupt as interrupt:
            for one in self._running.values():
                one.script.signal(getattr(interrupt, "number", signal.SIGINT))
            wait([one.code for one in self._running.values()], GRACE_S + 1)
            raise
        finally:
            for one in self._running.values():
                one.script.end()

    def _start(self) -> None:
        """Starts commands on free devices, unless all ends sooner without one there."""
        while free := [
            device for device in range(len(self._devices)) if device not in self._running
        ]:
            if self._again and self._largest in free:
                self._begin(self._largest, self._again.popleft())
                continue
            device = free[0] if self._pull else self._outlook().starts(free, len(self._waiting))
            if device is None or not self._waiting:
                return
            self._begin(device, self._waiting.popleft())

    def _begin(self, device: int, command: QueuedCommand) -> None:
        on = self._devices[device]
        text = command.command.replace("{device}", on.label).replace(
            "{number}", str(command.number)
        )
        log = CommandLog(
            self._logs / f"{command.number:03}.log", self._watch, again=bool(command.tries)
        )
        with signals_held():
            script = Script([on])
            script.start(_environment(on), ["-c", _SHELL, text])
            code = self._threads.submit(script.code, log.take)
            self._running[device] = _Running(command, script, log, time.monotonic(), code)
        self._found[command.number] = command.model_copy(update={"log": log.path})
        self._watch(CommandBegun(on, command))

    def _end(self, device: int, one: _Running) -> None:
        """Takes note of how a command ended, and tries it once more if it lacked memory that
        another device has.
        """
        one.script.end()
        start_s, end_s = one.began_s - self._began_s, time.monotonic() - self._began_s
        code = one.code.result()
        lacked = code != 0 and one.log.lacks_memory
        tried = Try(device=device, start_s=start_s, end_s=end_s, exit=code, out_of_memory=lacked)
        ended = {
            "tries": (*one.command.tries, tried),
            "log": one.log.path,
            "tail": one.log.tail() if code else (),
        }
        found = one.command.model_copy(update=ended)
        again = (
            lacked and not one.command.tries and self._memory[self._largest] > self._memory[device]
        )
        self._found[found.number] = found
        del self._running[device]
        if found.ended_well:
            self._journal.add(_key(found), self._devices[device])
            self._journal.add(_key(found), found)
        if again:
            self._again.append(found)
        next_on = self._devices[self._largest] if again else None
        self._watch(CommandEnded(self._devices[device], found, next_on))

    def _ended_s(self) -> list[list[float]]:
        """The seconds of the commands that ended well on each device."""
        ended: list[list[float]] = [[] for _ in self._devices]
        for one in self._found.values():
            if one.ended_well and one.tries:
                ended[one.tries[-1].device].append(max(1e-3, one.tries[-1].duration_s))
        return ended

    def _outlook(self) -> Outlook:
        """What to expect of the devices; the largest is not free before what is tried once more
        there.
        """
        ended_s = self._ended_s()
        since = [
            time.monotonic() - one.began_s if (one := self._running.get(n)) else None
            for n in range(len(ended_s))
        ]
        seen = outlook(ended_s, since, relative_times(ended_s, self._rates))
        each_s = seen.each_s[self._largest]
        free_s = list(seen.free_s)
        free_s[self._largest] += len(self._again) * (each_s or 0.0)
        return Outlook(free_s, seen.each_s)

    def _tell(self) -> None:
        running = tuple(
            RunningCommand(n, one.command, one.began_s, one.log.last)
            for n, one in sorted(self._running.items())
        )
        waiting = len(self._waiting) + len(self._again)
        ended = len(self._found) - waiting - len(running)
        left_s = self._outlook().rest_s(len(self._waiting)) if any(self._ended_s()) else None
        self._watch(QueueSeen(self._devices, waiting, ended, running, left_s))

    def result(self) -> Queue:
        """What has come of them so far."""
        times = relative_times(self._ended_s(), self._rates)
        fastest = min(filter(None, times), default=0.0)
        commands = tuple(self._found.values())
        here = [each for one in commands if not one.resumed for each in one.tries]
        shares = []
        for number, time_ in enumerate(times):
            own = [one for one in here if one.device == number]
            well, busy_s = sum(one.exit == 0 for one in own), sum(one.duration_s for one in own)
            speed = fastest / time_ if time_ else None
            shares.append(QueueShare(device=number, ended_well=well, busy_s=busy_s, speed=speed))
        ends_s = (
            [time.monotonic() - self._began_s] if self._running else [one.end_s for one in here]
        )
        makespan_s = max(ends_s, default=0.0)
        alone = [
            one.duration_s * (shares[one.device].speed or 0.0) for one in here if one.exit == 0
        ]
        alone_s = sum(alone) if alone and all(alone) else None
        return Queue(
            created=now(),
            devices=self._devices,
            commands=commands,
            shares=tuple(shares),
            makespan_s=makespan_s,
            alone_s=alone_s,
            speedup=alone_s and alone_s / makespan_s,
            complete=all(one.ended_well for one in commands),
        )


def queue(request: QueueRequest, logs: Path, watch: Watch, journal: Journal) -> Queue:
    """Runs the commands, with their output in the folder `logs`.

    Raises PartialResult if some failed, Interrupted by a signal, both with the result.
    """
    watch = one_at_a_time(watch)
    with ThreadPoolExecutor(len(request.devices)) as threads:
        commands = _Commands(request, logs, watch, journal, threads)
        try:
            commands.run()
        except KeyboardInterrupt as interrupt:
            result = commands.result()
            well = sum(one.ended_well for one in result.commands)
            told = (
                f"{well} of {len(result.commands)} commands had finished; running ones were "
                f"stopped; {RESUME}"
            )
            raise Interrupted.by(interrupt, partial=result, remedy=told) from None
    result = commands.result()
    if result.failed:
        numbers = ", ".join(str(one.number) for one in result.failed)
        what = f"{len(result.failed)} of {len(result.commands)} commands failed: {numbers}"
        raise PartialResult(what, remedy=f"after fixing these, {RESUME}", partial=result)
    return result


def journal_of_queue(request: QueueRequest) -> Journal:
    """The journal of the commands of a file, whichever they are and on which devices they run."""
    simulated = any(device.simulated for device in request.devices)
    key = content_key("queue", request.source, str(current_folder()), simulated)
    return free_journal(key, request.resume)


def logs_of(request: QueueRequest, journal: Journal) -> Path:
    """The folder for what the commands print: the one that was asked for, else one of the journal's
    name.
    """
    if request.logs is not None:
        return request.logs
    folder = state_folder("queues")
    delete_oldest(folder, "*", _KEPT)
    with suppress(OSError):  # on a full disk commands have no logs
        (folder / journal.path.stem).mkdir(exist_ok=True)
    return folder / journal.path.stem


def _key(one: QueuedCommand) -> str:
    return f"{one.number} {one.command}"


def _rates_by_probe(devices: Sequence[Device]) -> tuple[float, ...] | None:
    """The best that each device gave alone in the latest probe of all of them; None without one."""
    for probe in kept_probes():
        found = [find_device(probe, device) for device in devices]
        rates = tuple(one.solo_best.throughput for one in found if one and one.solo_best)
        if len(rates) == len(devices):
            return rates
    return None


def _environment(device: Device) -> dict[str, str | None]:
    """What shows a command its device alone, and lets its output be seen as it comes."""
    worker = worker_environment([device])
    return {**{name: worker[name] for name in _FROM_WORKERS}, "GPUBALANCE_DEVICE": device.label}
