"""The processes of a run over several hosts, with the interface of one.

Their replies are merged into one. If several fail, the failure that explains the others counts.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from enum import IntEnum, auto
from pathlib import Path
from typing import Any

from gpubalance.devices.environment import worker_environment
from gpubalance.errors import (
    DeadlinePassed,
    EnvironmentFault,
    GpubalanceError,
    PartialResult,
    TimeLimitPassed,
)
from gpubalance.remedies import known_error
from gpubalance.results.timing import Prefetched, Timing
from gpubalance.settings.cluster import Cluster
from gpubalance.settings.device import Device
from gpubalance.settings.record import Record
from gpubalance.system.deadlines import NO_LIMIT, TimeLimit, signals_held
from gpubalance.workers.failures import tail
from gpubalance.workers.messages import (
    AnyReply,
    Failed,
    Measured,
    Open,
    Progress,
    QueryProgress,
    Ready,
)
from gpubalance.workers.process import Process

# What one process gave when all were asked
Answer = AnyReply | GpubalanceError
# TensorFlow in the other processes may report a failure before the process that failed does.
_GRACE_S = 3.0


class FailureKind(IntEnum):
    """What is the matter with a process. Of several failures the one listed first is reported.

    It explains the others: a process that is out of memory, ends or is silent leaves them waiting.
    """

    MEMORY = auto()  # surely out of memory
    DEATH = auto()  # ended, lost or not reached
    OWN = auto()  # an error of its own
    SILENCE = auto()  # sent nothing in time
    PEER = auto()  # says that another one is lost
    NONE = auto()  # no failure


def kind_of(answer: Answer) -> FailureKind:
    """What is the matter with the process that gave this answer."""
    match answer:
        # Another process's lack of memory may end NCCL in this one.
        case Failed(disguised=True):
            return FailureKind.OWN
        case Failed(fault="memory"):
            return FailureKind.MEMORY
        case Failed(fault="peer"):
            return FailureKind.PEER
        case Failed():
            return FailureKind.OWN
        # Raised here: no worker answers. One that lives replies Failed("environment").
        case PartialResult() | EnvironmentFault():
            return FailureKind.DEATH
        case GpubalanceError():
            return FailureKind.SILENCE
    return FailureKind.NONE


def merged(replies: Sequence[Any]) -> AnyReply:
    """Merges replies of one kind, given in the devices' order.

    Compares durations, never moments: each host has its own clock.
    """
    first: AnyReply = replies[0]
    match first:
        case Ready():
            limits = _of_all(replies, "memory_limit_bytes")
            return first.model_copy(update={"memory_limit_bytes": limits})
        case Measured():
            peaks = _of_all(replies, "memory_peak_bytes")
            late = [reply.late_part for reply in replies if reply.late_part is not None]
            return first.model_copy(
                update={
                    "memory_peak_bytes": peaks,
                    "late_part": max(late, default=None),
                }
            )
        case Prefetched():  # a step waits for the slowest pipeline
            return max(replies, key=lambda pull: pull.seconds / pull.batches)  # type: ignore[no-any-return]
        case Timing():
            return _merged_timing(first, replies)
    return first


def _merged_timing(first: Timing, timings: Sequence[Timing]) -> Timing:
    update: dict[str, object] = {
        "ended_s": time.monotonic(),
        "input_wait_s": _input_wait_s(timings),
        "loss_is_finite": all(timing.loss_is_finite for timing in timings),
    }
    if first.compute_s is not None:
        update["compute_s"] = _of_all(timings, "compute_s")
        update["update_s"] = _of_all(timings, "update_s")
    return first.model_copy(update=update)


def _of_all(replies: Sequence[Any], name: str) -> tuple[object, ...]:
    """The field's values of all devices, of which each reply has its own device's."""
    values: list[object] = []
    for reply in replies:
        values += getattr(reply, name) or ()
    return tuple(values)


def _input_wait_s(timings: Sequence[Timing]) -> float:
    """max(wait + compute) − max(compute) over devices: how long data held up the last of them.

    Without stamps compute is 0, so it is the longest wait.
    """
    compute_s = [sum(timing.compute_s or ()) for timing in timings]
    pairs = zip(timings, compute_s, strict=True)
    last_s = max(timing.input_wait_s + seconds for timing, seconds in pairs)
    return max(0.0, last_s - max(compute_s))


def worker_process(
    devices: Sequence[Device], purpose: str, limit: TimeLimit = NO_LIMIT
) -> Process:
    """A worker's process with these devices, all on one host, which loads TensorFlow.

    Raises EnvironmentFault if it can't start.
    """
    process = Process(purpose, devices[0].host, limit)
    process.start(worker_environment(devices))
    return process


class Ranks:
    """One process for each device; all train one model, with TensorFlow's collectives.

    A request goes to all of them, and their replies become one reply: the first one's time for the
    step, and each device's own values. At the first failure the others get a moment to report
    theirs; then all are killed, as no collective works after a failure, and the failure that
    explains the others is reported with its device.
    """

    def __init__(
        self, devices: Sequence[Device], purpose: str, limit: TimeLimit
    ) -> None:
        """Raises EnvironmentFault if a process can't be started."""
        self._devices = tuple(devices)
        self._threads = ThreadPoolExecutor(len(devices))
        self._members: list[Process] = []
        self._failed_rank = 0
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
    def worker_has_answered(self) -> bool:
        """Whether all processes have answered."""
        return all(member.worker_has_answered for member in self._members)

    @property
    def log(self) -> Path:
        """The log of the process whose failure was reported, else of the first."""
        return self._members[self._failed_rank].log

    def send(self, request: Record) -> None:
        """Sends a request to all. `Open` goes to each with its own place in the cluster."""
        if not isinstance(request, Open):
            for member in self._members:
                member.send(request)
            return
        addresses = tuple(self._address(rank) for rank in range(len(self._members)))
        for rank, member in enumerate(self._members):
            place = Cluster(addresses=addresses, rank=rank)
            member.send(request.model_copy(update={"cluster": place}))

    def _address(self, rank: int) -> str:
        try:
            return self._members[rank].greeted().address
        except GpubalanceError as error:
            self.request_exit()
            raise self._naming_device(rank, error) from None

    def receive(self, within_s: float, doing: str) -> AnyReply:
        """The merged reply of all, or the Failed that explains the others' failures.

        Raises what `Process.receive` does, naming the device.
        """
        try:
            answers = self._gather(within_s, doing)
            if any(kind_of(answer) < FailureKind.NONE for answer in answers.values()):
                return self._failure(answers, doing)
        except BaseException:
            # Also ends the threads that still wait for a process's reply.
            self.request_exit()
            raise
        return merged([answers[rank] for rank in sorted(answers)])

    def _gather(self, within_s: float, doing: str) -> dict[int, Answer]:
        """By rank what each process gave, in order of arrival, except if late after a failure."""
        ranks: dict[Future[Answer], int] = {}
        # `concurrent.futures.wait` would check all futures again whenever one is done.
        arrived = queue.SimpleQueue[Future[Answer]]()
        with signals_held():  # an interrupt must not leave a thread half started
            for rank, member in enumerate(self._members):
                future = self._threads.submit(_answer_of, member, within_s, doing)
                ranks[future] = rank
                future.add_done_callback(arrived.put)
        answers: dict[int, Answer] = {}
        best_explanation = FailureKind.NONE
        end_s = None
        # Nothing that others report explains a lack of memory.
        while (
            len(answers) < len(self._members) and best_explanation != FailureKind.MEMORY
        ):
            left_s = None if end_s is None else max(0.0, end_s - time.monotonic())
            try:
                future = arrived.get(timeout=left_s)
            except queue.Empty:
                break
            rank = ranks[future]
            answers[rank] = future.result()
            best_explanation = min(best_explanation, kind_of(answers[rank]))
            if end_s is None and best_explanation < FailureKind.NONE:
                end_s = time.monotonic() + _GRACE_S
        return answers

    def _failure(self, answers: Mapping[int, Answer], doing: str) -> AnyReply:
        """The failure that explains the others: of several of its kind the first that arrived.

        Returns a Failed; raises any other. Ends all processes, unless they are silent or lost a
        peer: silent ones may still be asked for their progress, and the caller ends all.
        """
        rank = min(answers, key=lambda rank: kind_of(answers[rank]))
        cause = answers[rank]
        self._failed_rank = rank
        if kind_of(cause) in (FailureKind.SILENCE, FailureKind.PEER):
            raise self._silence(answers, doing)
        self.request_exit()
        if isinstance(cause, GpubalanceError):
            raise self._naming_device(rank, cause)
        assert isinstance(cause, Failed)  # noqa: S101  (the others are no failures)
        if cause.fault == "memory":
            peaks: list[int | None] = [None] * len(self._members)
            # The process has one device, so one peak.
            peaks[rank : rank + 1] = cause.memory_peak_bytes or [None]
            return cause.model_copy(
                update={"replica": rank, "memory_peak_bytes": tuple(peaks)}
            )
        faults = [
            answer.fault for answer in answers.values() if isinstance(answer, Failed)
        ]
        # All have the same fault, so it concerns no single device.
        if faults.count(cause.fault) == len(self._members):
            return cause
        return cause.model_copy(
            update={"message": f"{self._devices[rank].label}: {cause.message}"}
        )

    def _naming_device(self, rank: int, error: GpubalanceError) -> GpubalanceError:
        """The error, with the rank's device put before its message.

        Not if the message begins with the host, and not of the time limit, which concerns all.
        """
        device = self._devices[rank]
        names_host = error.message.startswith(f"{device.host} ")
        if not names_host and not isinstance(error, TimeLimitPassed):
            error.message = f"{device.label}: {error.message}"
        return error

    def _silence(self, answers: Mapping[int, Answer], doing: str) -> DeadlinePassed:
        """The error for processes that are silent, or whose peer is lost.

        TensorFlow in the others reports that it lost a peer, but not which one or why.
        """
        kinds = {rank: kind_of(answer) for rank, answer in answers.items()}
        lost = [rank for rank in kinds if kinds[rank] == FailureKind.PEER]
        silent: Sequence[int] = [
            rank
            for rank in range(len(self._members))
            if kinds.get(rank, FailureKind.SILENCE) == FailureKind.SILENCE
        ]
        if not silent:
            message = (
                f"{self._labels(lost)} lost the connection to each other while {doing}"
            )
        elif lost:
            were_silent = f"{self._labels(silent)} sent nothing while {doing}"
            to_whom = "it" if len(silent) == 1 else "them"
            message = f"{were_silent}, and {self._labels(lost)} lost the connection to {to_whom}"
        else:
            silent, why = self._held_up_by(silent)
            message = f"{self._labels(silent)} sent nothing while {doing}; {why}"
        self._failed_rank = (silent or lost)[0]  # `self.log` is now that of this rank
        code = "peer-lost" if lost else "silent"
        row = known_error(code)
        remedy = f"{row.remedy}\nits log shows what its threads were doing: {self.log}"
        return DeadlinePassed(
            message, cause=row.cause, remedy=remedy, log=tail(self.log)
        )

    def _held_up_by(self, silent: Sequence[int]) -> tuple[Sequence[int], str]:
        """Which ranks the others wait for, all silent ones if that is unknown, and why.

        A process that hangs makes all others wait for it in a collective, and from outside they
        look the same.
        """
        members = [self._members[rank] for rank in silent]
        progress = self._threads.map(_progress_of, members)
        progress_of = dict(zip(silent, progress, strict=True))
        unresponsive = [rank for rank in silent if progress_of[rank] is None]
        computed = {}  # by rank, how many steps have the process's own gradients
        for rank, reply in progress_of.items():
            if isinstance(reply, Progress):
                computed[rank] = reply.computed
        min_computed = min(computed.values(), default=0)
        fewest_steps = [rank for rank in computed if computed[rank] == min_computed]
        blamed = unresponsive or fewest_steps
        # None is known to be behind, or all are alike.
        if len(blamed) in (0, len(self._members)):
            return silent, "each waits for the others, or for the network between them"
        who = "it" if len(blamed) == 1 else "each"
        if unresponsive:
            return (
                blamed,
                (
                    f"the others wait, because {who} does not respond, not even in a "
                    "second thread"
                ),
            )
        return blamed, f"the others wait, because {who} has not computed its gradients"

    def _labels(self, ranks: Sequence[int]) -> str:
        return ", ".join(self._devices[rank].label for rank in sorted(ranks))

    def request_exit(self) -> None:
        """Has the agents kill all processes, from any thread. Waits for nothing."""
        for member in self._members:
            member.request_exit()

    def end(self) -> None:
        """Ends all processes, and waits until they are gone. May be called more than once."""
        self.request_exit()
        self._threads.shutdown()
        for member in self._members:
            member.end()


def _answer_of(member: Process, within_s: float, doing: str) -> Answer:
    """The process's next message, or the error in its place. Raises TimeLimitPassed."""
    try:
        return member.receive(within_s, doing)
    except TimeLimitPassed:
        raise
    except GpubalanceError as error:
        return error


def _progress_of(member: Process) -> AnyReply | None:
    """The process's Progress, or a late answer to an earlier request; None if it gives neither."""
    member.send(QueryProgress())
    answer = _answer_of(member, _GRACE_S, "being asked for its progress")
    return None if isinstance(answer, GpubalanceError) else answer
