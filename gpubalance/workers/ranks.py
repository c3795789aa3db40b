"""The processes of a run over several hosts, with the interface of one."""

from __future__ import annotations

import queue
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gpubalance.errors import (
    DeadlinePassed,
    EnvironmentFault,
    GpubalanceError,
    PartialResult,
    TimeLimitPassed,
)
from gpubalance.remedies import known_error
from gpubalance.results.timing import Pulled, Timing
from gpubalance.settings.cluster import Cluster
from gpubalance.settings.device import Device
from gpubalance.settings.record import Record
from gpubalance.system.deadlines import NO_LIMIT, TimeLimit
from gpubalance.workers.log import tail
from gpubalance.workers.messages import AnyReply, Failed, Measured, Open, Ready, Where, Whereabouts
from gpubalance.workers.process import Process, signals_held, worker_environment

# TensorFlow in the other processes may report a failure before the process that failed does.
_GRACE_S = 3.0

Said = AnyReply | GpubalanceError


def worker_process(devices: Sequence[Device], purpose: str, limit: TimeLimit = NO_LIMIT) -> Process:
    """A worker's process with these devices, all on one host, which loads TensorFlow.

    Raises EnvironmentFault if it can't start.
    """
    process = Process(purpose, devices[0].host, limit)
    process.start(worker_environment(devices))
    return process


class Ranks:
    """One process for each device; each trains the same model, and TensorFlow's collectives sum
    their gradients.

    A request goes to all of them, and their replies become one reply: the first one's time for the
    step, and each device's own values. At the first failure the others get a moment to report
    theirs; then all are killed, as no collective works after a failure, and the failure that
    explains the others is reported with its device.
    """

    def __init__(self, devices: Sequence[Device], purpose: str, limit: TimeLimit) -> None:
        """Raises EnvironmentFault if a process can't be started."""
        self._devices = tuple(devices)
        self._threads = ThreadPoolExecutor(len(devices))
        self._members: list[Process] = []
        self._told_by = 0
        try:
            for device in devices:
                self._members.append(worker_process([device], purpose, limit))
        except BaseException:
            self.end()
            raise

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

    def send(self, request: Record) -> None:
        """Sends a request to all; to open a model with each one's place in the cluster."""
        addresses = (
            tuple(map(self._address, range(len(self._members))))
            if isinstance(request, Open)
            else ()
        )
        for rank, member in enumerate(self._members):
            if isinstance(request, Open):
                place = Cluster(addresses=addresses, rank=rank)
                request = request.model_copy(update={"cluster": place})
            member.send(request)

    def _address(self, rank: int) -> str:
        try:
            return self._members[rank].greeted().address
        except GpubalanceError as error:
            self.kill()
            raise self._named(rank, error) from None

    def receive(self, within_s: float, doing: str) -> AnyReply:
        """The merged reply of all. Raises what `Process.receive` does, naming the device."""
        try:
            said = self._gather(within_s, doing)
            if min(map(_blame, said.values())) < _NOTHING:
                return self._blamed(said, doing)
        except BaseException:
            # Each thread that waits for its process must hear of it
            self.kill()
            raise
        return _merged([said[rank] for rank in sorted(said)])

    def _gather(self, within_s: float, doing: str) -> dict[int, Said]:
        """What each process said, in order of arrival; those that said nothing in time
        are missing.
        """
        said: dict[int, Said] = {}
        # `wait` would check all again for each that arrives
        came = queue.SimpleQueue[Future[Said]]()
        with signals_held():
            waiting = {
                self._threads.submit(_heard, m, within_s, doing): rank
                for rank, m in enumerate(self._members)
            }
            for heard in waiting:
                heard.add_done_callback(came.put)
        end_s, worst = None, _NOTHING
        # Nothing that others say explains that
        while len(said) < len(self._members) and worst != _MEMORY:
            try:
                one = came.get(
                    timeout=None if end_s is None else max(0.0, end_s - time.monotonic())
                )
            except queue.Empty:
                break
            rank = waiting[one]
            said[rank] = one.result()
            worst = min(worst, _blame(said[rank]))
            if end_s is None and worst < _NOTHING:
                end_s = time.monotonic() + _GRACE_S
        return said

    def _blamed(self, said: Mapping[int, Said], doing: str) -> AnyReply:
        """The failure that explains the others: the first of several like it. Ends all."""
        rank, cause = min(said.items(), key=lambda one: _blame(one[1]))
        self._told_by = rank
        if _blame(cause) in (_SILENCE, _PEER):
            raise self._silence(said, doing)
        self.kill()
        if isinstance(cause, GpubalanceError):
            raise self._named(rank, cause)
        assert isinstance(cause, Failed)  # noqa: S101  (the others are no failures)
        if cause.fault == "memory":
            peaks: list[int | None] = [None] * len(self._members)
            peaks[rank : rank + 1] = cause.memory_peak_bytes or [None]
            return cause.model_copy(update={"replica": rank, "memory_peak_bytes": tuple(peaks)})
        alike = [
            one for one in said.values() if isinstance(one, Failed) and one.fault == cause.fault
        ]
        if len(alike) == len(self._members):  # it concerns no single device
            return cause
        return cause.model_copy(update={"message": f"{self._devices[rank].label}: {cause.message}"})

    def _named(self, rank: int, error: GpubalanceError) -> GpubalanceError:
        device = self._devices[rank]
        if not isinstance(error, TimeLimitPassed) and not error.message.startswith(
            f"{device.host} "
        ):
            error.message = f"{device.label}: {error.message}"
        return error

    def _silence(self, said: Mapping[int, Said], doing: str) -> DeadlinePassed:
        """Who is silent: TensorFlow in the others reports that it lost a peer, but not which one or
        why.
        """
        lost = [rank for rank, one in said.items() if _blame(one) == _PEER]
        silent = [
            rank
            for rank in range(len(self._members))
            if rank not in said or _blame(said[rank]) == _SILENCE
        ]
        message = (
            f"{self._names(silent)} said nothing while {doing}, and {self._names(lost)} lost it"
        )
        if not silent:
            message = f"{self._names(lost)} lost each other while {doing}"
        elif not lost:
            silent, how = self._held_up_by(silent)
            message = f"{self._names(silent)} said nothing while {doing}; {how}"
        self._told_by = (silent or lost)[0]
        row = known_error("silent" if silent and not lost else "peer-lost")
        remedy = f"{row.remedy}\nwhat its threads do is in its log, {self.log}"
        return DeadlinePassed(message, cause=row.cause, remedy=remedy, log=tail(self.log))

    def _held_up_by(self, silent: Sequence[int]) -> tuple[list[int], str]:
        """Which ranks the others wait for, all silent ones if that is unknown, and why.

        A process that hangs makes all others wait for it in a collective, and from outside they
        look the same.
        """
        answers = dict(
            zip(
                silent,
                self._threads.map(_place_of, [self._members[rank] for rank in silent]),
                strict=True,
            )
        )
        dumb = [rank for rank, one in answers.items() if one is None]
        computed = {
            rank: one.computed for rank, one in answers.items() if isinstance(one, Whereabouts)
        }
        blamed = dumb or [
            rank for rank, steps in computed.items() if steps == min(computed.values())
        ]
        if len(blamed) in (0, len(self._members)):
            return list(silent), "each waits for the others, or for the network between them"
        how = (
            "does not answer from another thread either"
            if dumb
            else "has not computed its gradients"
        )
        return blamed, f"the others wait, as {'it' if len(blamed) == 1 else 'each'} {how}"

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
    """How well it explains other failures: one that is out of memory, ends or is silent leaves the
    others waiting.
    """
    if isinstance(said, Failed):
        if said.disguised:  # another's lack of memory may end NCCL here
            return _OWN
        return {"memory": _MEMORY, "peer": _PEER}.get(said.fault, _OWN)
    if isinstance(said, PartialResult | EnvironmentFault):
        return _DEATH
    return _SILENCE if isinstance(said, GpubalanceError) else _NOTHING


def _heard(member: Process, within_s: float, doing: str) -> Said:
    try:
        return member.receive(within_s, doing)
    except TimeLimitPassed:
        raise
    except GpubalanceError as error:
        return error


def _place_of(member: Process) -> AnyReply | None:
    """Where the process is, or a late answer to an earlier request."""
    member.send(Where())
    said = _heard(member, _GRACE_S, "being asked where it is")
    return None if isinstance(said, GpubalanceError) else said


def _merged(replies: Sequence[Any]) -> AnyReply:
    """Merges replies of one kind, given in the devices' order. Compares only durations: each host
    has its own clock.
    """

    def joined(name: str) -> tuple[object, ...]:
        return tuple(value for reply in replies for value in getattr(reply, name) or ())

    first: AnyReply = replies[0]
    update: dict[str, object] = {}
    match first:
        case Ready():
            update["memory_limit_bytes"] = joined("memory_limit_bytes")
        case Measured():
            late = [reply.late_part for reply in replies if reply.late_part is not None]
            update = {
                "memory_peak_bytes": joined("memory_peak_bytes"),
                "late_part": max(late, default=None),
            }
        case Pulled():  # a step waits for the slowest pipeline
            return max(replies, key=lambda one: one.seconds / one.batches)  # type: ignore[no-any-return]
        case Timing():
            update = {
                name: joined(name)
                for name in ("compute_s", "update_s")
                if first.compute_s is not None
            }
            update["ended_s"] = time.monotonic()
            update["input_wait_s"] = _input_wait_s(replies)
            update["loss_is_finite"] = all(timing.loss_is_finite for timing in replies)
    return first.model_copy(update=update)


def _input_wait_s(timings: Sequence[Timing]) -> float:
    """How much later the last device finished computing because it waited; without stamps the
    longest wait.
    """
    computes = [sum(timing.compute_s or ()) for timing in timings]
    last_s = max(
        timing.input_wait_s + compute for timing, compute in zip(timings, computes, strict=True)
    )
    return max(0.0, last_s - max(computes))
