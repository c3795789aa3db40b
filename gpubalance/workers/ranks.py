"""The processes of a run over several hosts, with the interface of one."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn, TypeVar

from gpubalance.errors import DeadlinePassed, EnvironmentFault, GpubalanceError, PartialResult, TimeLimitPassed
from gpubalance.remedies import known
from gpubalance.settings.cluster import Cluster
from gpubalance.settings.device import Device
from gpubalance.settings.record import Record
from gpubalance.system.deadlines import NO_LIMIT, TimeLimit
from gpubalance.workers.environment import worker_environment
from gpubalance.workers.merged import merged
from gpubalance.workers.messages import AnyReply, Failed, Open, Where, Whereabouts
from gpubalance.workers.process import Process
from gpubalance.workers.signals import signals_held

# TensorFlow in the other processes may report a failure before the process that failed does.
_GRACE_S = 3.0

T = TypeVar("T")
Said = AnyReply | GpubalanceError


def worker_process(devices: Sequence[Device], purpose: str, limit: TimeLimit = NO_LIMIT) -> Process:
    """A worker's process with these devices, all on one host, which loads TensorFlow.

    Raises EnvironmentFault if it can't start.
    """
    process = Process(purpose, devices[0].host, limit)
    process.start(worker_environment(devices))
    return process


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
        with ExitStack() as at_a_failure:
            for device in devices:
                self._members.append(worker_process([device], purpose, limit))
                at_a_failure.callback(self._members[-1].end)
            at_a_failure.pop_all()
        self._threads = ThreadPoolExecutor(len(devices))

    @property
    def lives(self) -> bool:
        """Whether all processes live."""
        return all(member.lives for member in self._members)

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
        if isinstance(request, Open):
            self._addresses = tuple(self._each(lambda _, member: member.address))
        self._each(lambda rank, member: member.send(self._placed(request, rank)))

    def _placed(self, request: Record, rank: int) -> Record:
        """The request, to open a model with a process's place in the cluster, and of GPUs only its own."""
        if not isinstance(request, Open):
            return request
        devices = request.devices if self._devices[rank].simulated else (self._devices[rank],)
        place = Cluster(addresses=self._addresses, rank=rank)
        return request.model_copy(update={"devices": devices, "cluster": place})

    def _each(self, work: Callable[[int, Process], T]) -> list[T]:
        """What `work` returns for each. If it fails for one, kills all and raises the error with its device."""
        done: list[T] = []
        for rank, member in enumerate(self._members):
            try:
                done.append(work(rank, member))
            except GpubalanceError as error:
                self.kill()
                self._raise(rank, error)
        return done

    def receive(self, within_s: float, doing: str) -> AnyReply:
        """The merged reply of all. Raises what `Process.receive` does, naming the device."""
        try:
            said = self._gather(within_s, doing)
            replies = [one for _, one in sorted(said.items()) if not isinstance(one, GpubalanceError | Failed)]
            if len(replies) < len(self._members):
                return self._blamed(said, doing)
        except BaseException:  # each thread that waits for its process must hear of it
            self.kill()
            raise
        if len({type(reply) for reply in replies}) > 1:
            raise self.unreadable("one goes on where another has ended")
        return merged(replies)

    def _gather(self, within_s: float, doing: str) -> dict[int, Said]:
        """What each process said, in order of arrival; those that said nothing in time are missing."""
        said: dict[int, Said] = {}
        came = queue.SimpleQueue[Future[Said]]()  # `wait` would check all again for each that arrives
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

    def _blamed(self, said: Mapping[int, Said], doing: str) -> AnyReply:
        """The failure that explains the others: the first of several like it. Ends all."""
        self._told_by, cause = min(said.items(), key=lambda one: _blame(one[1]))
        rank, kind = self._told_by, _blame(cause)
        if kind in (_SILENCE, _PEER):
            self._raise_silence(said, doing)
        self.kill()
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

    def _raise_silence(self, said: Mapping[int, Said], doing: str) -> NoReturn:
        """Raises who is silent: TensorFlow in the others reports that it lost a peer, but not which one or why."""
        for error in said.values():
            if isinstance(error, TimeLimitPassed):
                raise error
        lost = [rank for rank, one in said.items() if _blame(one) == _PEER]
        silent = [rank for rank in range(len(self._members)) if _blame(said.get(rank, _NOT_YET)) == _SILENCE]
        message = f"{self._names(silent)} said nothing while {doing}, and {self._names(lost)} lost it"
        if not silent:
            message = f"{self._names(lost)} lost each other while {doing}"
        elif not lost:
            silent, how = self._held_up_by(silent)
            message = f"{self._names(silent)} said nothing while {doing}; {how}"
        self._told_by = (silent or lost)[0]
        row = known("silent" if silent and not lost else "peer-lost")
        remedy = f"{row.remedy}\nwhat its threads do is in its log, {self.log}"
        raise DeadlinePassed(message, cause=row.cause, remedy=remedy, log=self.log_tail())

    def _held_up_by(self, silent: Sequence[int]) -> tuple[list[int], str]:
        """Which ranks the others wait for, all silent ones if that is unknown, and why.

        A process that hangs makes all others wait for it in a collective, and from outside they look the same.
        """
        answers = dict(zip(silent, self._threads.map(_place_of, [self._members[rank] for rank in silent]), strict=True))
        dumb = [rank for rank, one in answers.items() if one is None]
        where = {rank: one for rank, one in answers.items() if isinstance(one, Whereabouts)}
        last = min((one.computed for one in where.values()), default=0)
        behind = {rank: one.at for rank, one in where.items() if one.computed == last}
        blamed = dumb or [rank for rank, at in behind.items() if at] or list(behind)
        if len(blamed) in (0, len(self._members)):
            return list(silent), "each waits for the others, or for the network between them"
        how = "does not answer from another thread either" if dumb else behind[blamed[0]]
        it = "it" if len(blamed) == 1 else "each"
        return blamed, f"the others wait, as {it} {how or 'has not computed its gradients'}"

    def _names(self, ranks: Sequence[int]) -> str:
        return ", ".join(self._devices[rank].label for rank in sorted(ranks))

    def kill(self) -> None:
        """Kills all processes, from any thread."""
        for member in self._members:
            member.kill()

    def end(self) -> None:
        """Ends all processes, and waits until they are gone. May be called more than once."""
        self.kill()
        self._threads.shutdown()
        for member in self._members:
            member.end()


# What explains what: the first of these that occurs is reported.
_MEMORY, _DEATH, _OWN, _SILENCE, _PEER, _NOTHING = range(6)


def _blame(said: Said) -> int:
    """How well it explains other failures: one that is out of memory, ends or is silent leaves the others waiting."""
    if isinstance(said, Failed):
        return {"memory": _MEMORY, "peer": _PEER}.get(said.fault, _OWN)
    if isinstance(said, PartialResult | EnvironmentFault):
        return _DEATH
    return _SILENCE if isinstance(said, GpubalanceError) else _NOTHING


_NOT_YET = DeadlinePassed("")


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
