"""The processes of a run over several hosts, with the interface of one."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import repeat
from pathlib import Path
from typing import NoReturn

from gpubalance.devices.hosts import are_reached
from gpubalance.errors import DeadlinePassed, EnvironmentFault, GpubalanceError, PartialResult, TimeLimitPassed
from gpubalance.remedies import known
from gpubalance.settings.cluster import Cluster
from gpubalance.settings.device import Device
from gpubalance.settings.record import Record
from gpubalance.system.deadlines import NO_LIMIT, TimeLimit
from gpubalance.workers import agents
from gpubalance.workers.code import code_key
from gpubalance.workers.elsewhere import process_of
from gpubalance.workers.merged import merged
from gpubalance.workers.messages import AnyReply, Failed, Open, Where
from gpubalance.workers.pipes import make_room
from gpubalance.workers.process import Process, free_addresses
from gpubalance.workers.signals import signals_held
from gpubalance.workers.whereabouts import Held, held_up_by

# TensorFlow in the other processes may report a failure before the process that failed does.
_GRACE_S = 3.0

Said = AnyReply | GpubalanceError


class Ranks:
    """One process for each device; each trains the same model, and TensorFlow's collectives sum their gradients.

    A request goes to all of them, and their replies become one reply: the first one's time for the step, and each
    device's own values. At the first failure the others get a moment to report theirs; then all are killed, as no
    collective works after a failure, and the failure that explains the others is reported with its device.
    """

    def __init__(self, devices: Sequence[Device], purpose: str, limit: TimeLimit = NO_LIMIT) -> None:
        """Raises EnvironmentFault if a process can't be started."""
        self._devices = tuple(devices)
        self._members: list[Process] = []
        self._told_by = 0
        self._limit = limit
        self._killed = self._gone = False
        make_room(2 * len(devices))
        with ExitStack() as at_a_failure:
            for device in devices:
                self._members.append(process_of([device], purpose, limit))
                at_a_failure.callback(self._members[-1].end)
            at_a_failure.pop_all()
        self._threads = ThreadPoolExecutor(len(devices))

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids, in the devices' order."""
        return tuple(member.pid for member in self._members)

    @property
    def lives(self) -> bool:
        """Whether all processes live and were not killed."""
        return not self._killed and all(member.lives for member in self._members)

    @property
    def has_answered(self) -> bool:
        """Whether all processes have answered."""
        return all(member.has_answered for member in self._members)

    @property
    def log(self) -> Path:
        """The log of the process whose failure was reported, else of the first."""
        return self._members[self._told_by].log

    def log_tail(self) -> str:
        """The last lines of that log."""
        return self._members[self._told_by].log_tail()

    def unreadable(self, why: str) -> PartialResult:
        """The error for messages that can't be read."""
        return self._members[0].unreadable(why)

    def send(self, request: Record) -> None:
        """Sends a request to all. Raises DeadlinePassed, naming the device, if one reads nothing."""
        lines = self._openings(request) if isinstance(request, Open) else repeat(request.model_dump_json().encode())
        for rank, (member, line) in enumerate(zip(self._members, lines, strict=False)):
            with self._named(rank):
                member.write(line)

    def _openings(self, request: Open) -> Iterator[bytes]:
        """A request for each process, with its place. It names no other GPUs: they may be thousands for thousands."""
        code = code_key(request.settings.model, request.settings.data) if are_reached() else None
        cluster = Cluster(addresses=self._free_addresses(), rank=0)
        for rank, device in enumerate(self._devices):
            devices = request.devices if device.simulated else (device,)
            place = cluster.model_copy(update={"rank": rank})  # not validated: n times n addresses
            update = {"cluster": place, "devices": devices, "code": code}
            yield request.model_copy(update=update).model_dump_json().encode()

    def _free_addresses(self) -> tuple[str, ...]:
        """Addresses at which each process may listen. Raises what the connections to hosts raise."""
        if not are_reached():
            return free_addresses(len(self._members))
        try:
            return agents.free_addresses([device.host for device in self._devices], limit=self._limit)
        except GpubalanceError:
            self.kill()
            raise

    @contextlib.contextmanager
    def _named(self, rank: int) -> Iterator[None]:
        """If the block fails for one process, kills all and raises the error with that process' device."""
        try:
            yield
        except GpubalanceError as error:
            self.kill()
            self._raise(rank, error)

    def receive(self, within_s: float, doing: str) -> AnyReply:
        """The merged reply of all. Raises what `Process.receive` does, naming the device."""
        try:
            said = self._gather(within_s, doing)
        except BaseException:  # each thread that waits for its process must hear of it
            self.kill()
            raise
        replies = [one for _, one in sorted(said.items()) if not isinstance(one, GpubalanceError | Failed)]
        if len(replies) < len(self._members):
            held = self._held(said)
            self.kill()
            return self._blamed(said, doing, held)
        if len({type(reply) for reply in replies}) > 1:
            raise self.unreadable("one goes on where another has ended")
        return merged(replies)

    def _gather(self, within_s: float, doing: str) -> dict[int, Said]:
        """What each process said, in order of arrival; those that said nothing in time are missing."""
        said: dict[int, Said] = {}
        came = queue.SimpleQueue[Future[Said]]()  # `wait` would check thousands again for each that arrives
        with signals_held():
            waiting = {self._threads.submit(_heard, m, within_s, doing): rank for rank, m in enumerate(self._members)}
            for heard in waiting:
                heard.add_done_callback(came.put)
        end, worst = None, _NOTHING
        while len(said) < len(self._members) and worst != _MEMORY:  # nothing that others say explains that
            try:
                one = came.get(timeout=None if end is None else max(0.0, end - time.monotonic()))
            except queue.Empty:
                break
            rank = waiting[one]
            said[rank] = one.result()
            worst = min(worst, _blame(said[rank]))
            if end is None and worst < _NOTHING:
                end = time.monotonic() + _GRACE_S
        return said

    def _held(self, said: Mapping[int, Said]) -> Held | None:
        """Asks the silent processes, before they are killed, which of them the others wait for."""
        silent = [rank for rank, one in said.items() if _blame(one) == _SILENCE]
        if len(said) < len(self._members) or {_blame(one) for one in said.values()} - {_SILENCE, _NOTHING}:
            return None  # a failure explains it
        places = self._threads.map(_place_of, [self._members[rank] for rank in silent])
        return held_up_by(dict(zip(silent, places, strict=True)), len(self._members))

    def _blamed(self, said: Mapping[int, Said], doing: str, held: Held | None) -> AnyReply:
        """The failure that explains the others: the first of several like it."""
        self._told_by, cause = min(said.items(), key=lambda one: _blame(one[1]))
        rank, kind = self._told_by, _blame(cause)
        if kind in (_SILENCE, _PEER):
            self._raise_silence(said, doing, held)
        if isinstance(cause, GpubalanceError):
            self._raise(rank, cause)
        assert isinstance(cause, Failed)  # noqa: S101  (the others are no failures)
        if kind == _MEMORY:
            peaks: list[int | None] = [None] * len(self._members)
            peaks[rank : rank + 1] = cause.memory_peak_bytes or [None]
            return cause.model_copy(update={"replica": rank, "memory_peak_bytes": tuple(peaks)})
        alike = [one for one in said.values() if isinstance(one, Failed) and one.fault == cause.fault]
        if len(alike) == len(self._members):  # it concerns no single device
            return cause
        return cause.model_copy(update={"message": f"{self._devices[rank].label}: {cause.message}"})

    def _raise(self, rank: int, error: GpubalanceError) -> NoReturn:
        host, label = self._devices[rank].host, self._devices[rank].label
        if not isinstance(error, TimeLimitPassed) and not error.message.startswith(f"{host} "):
            error.message = f"{label}: {error.message}"
        raise error

    def _raise_silence(self, said: Mapping[int, Said], doing: str, held: Held | None) -> NoReturn:
        """Raises who is silent: TensorFlow in the others reports that it lost a peer, but not which one or why."""
        for error in said.values():
            if isinstance(error, TimeLimitPassed):
                raise error
        if held is not None:
            self._raise_held(said, held)
        lost = [rank for rank, one in said.items() if _blame(one) == _PEER]
        silent = [rank for rank in range(len(self._members)) if rank not in said or _blame(said[rank]) == _SILENCE]
        self._told_by = (silent or lost)[0]
        if silent:
            message = f"{self._names(silent)} said nothing while {doing}"
            message += f", and {self._names(lost)} lost it" if lost else ""
        else:
            message = f"{self._names(lost)} lost each other while {doing}"
        row = known("peer-lost")
        raise DeadlinePassed(
            message, cause=row.cause, remedy=f"{row.remedy}\nits log is {self.log}", log=self.log_tail()
        )

    def _raise_held(self, said: Mapping[int, Said], held: Held) -> NoReturn:
        """Raises that all wait, and which of the silent processes keep them waiting."""
        self._told_by = (held.ranks or [rank for rank, one in said.items() if _blame(one) == _SILENCE])[0]
        error = said[self._told_by]
        assert isinstance(error, GpubalanceError)  # noqa: S101  (it is silent)
        if held.ranks:
            it = "it" if len(held.ranks) == 1 else "each"
            error.message = f"{self._names(held.ranks)}: {error.message}; the others wait, as {it} {held.how}"
        else:
            error.message = f"all are silent: {error.message}; {held.how}"
        if held.cause:
            error.cause, error.remedy = held.cause, f"what its threads do is in its log, {self.log}"
        error.log = self.log_tail()
        raise error

    def _names(self, ranks: Sequence[int]) -> str:
        return ", ".join(self._devices[rank].label for rank in sorted(ranks))

    def kill(self) -> None:
        """Kills all processes, from any thread: one stuck in a collective survives TERM."""
        self._killed = True
        for member in self._members:
            member.kill()

    def end(self) -> None:
        """Ends all processes, and waits until they are gone. May be called more than once."""
        if self._gone:
            return
        list(self._threads.map(lambda member: member.end(), self._members))
        self._threads.shutdown()
        self._gone = True


# What explains what: the first of these that occurs is reported.
_MEMORY, _DEATH, _OWN, _SILENCE, _PEER, _NOTHING = range(6)


def _blame(said: Said) -> int:
    """How well it explains other failures: one that is out of memory, ends or is silent leaves the others waiting."""
    if isinstance(said, Failed):
        return {"memory": _MEMORY, "peer": _PEER}.get(said.fault, _OWN)
    if isinstance(said, PartialResult | EnvironmentFault):
        return _DEATH
    return _SILENCE if isinstance(said, GpubalanceError) else _NOTHING


def _heard(member: Process, within_s: float, doing: str) -> Said:
    try:
        return member.receive(within_s, doing)
    except GpubalanceError as error:
        return error


def _place_of(member: Process) -> AnyReply | None:
    """Where the process is, or a late answer to an earlier request."""
    try:
        member.send(Where(), _GRACE_S)
        return member.receive(_GRACE_S, "being asked where it is")
    except GpubalanceError:
        return None
