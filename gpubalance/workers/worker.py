"""The requests that a worker answers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

from gpubalance.devices.hosts import are_reached
from gpubalance.errors import (
    BadInput,
    DeadlinePassed,
    EnvironmentFault,
    GpubalanceError,
    OutOfMemory,
    PartialResult,
    Refused,
    TimeLimitPassed,
)
from gpubalance.results.timing import Timing
from gpubalance.settings.device import Device, hosts_of
from gpubalance.settings.record import Record
from gpubalance.settings.settings import Settings
from gpubalance.settings.shares import Shares
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.code import code_key
from gpubalance.workers.log import tail
from gpubalance.workers.messages import (
    AnyReply,
    AnyRequest,
    Build,
    Copy,
    CountFlops,
    Failed,
    Inspect,
    Measure,
    Measured,
    Open,
    Pipe,
    Pull,
    Ready,
    Reduce,
    Stop,
    Survey,
    TimeBlocks,
    Trace,
)
from gpubalance.workers.process import Process
from gpubalance.workers.ranks import Ranks, worker_process

Reply = TypeVar("Reply", bound=AnyReply)

# Only silence ends a worker, not slowness. These limits are for work without messages.
# TensorFlow, from a slow disk, and the GPUs; counted before the first answer
LOADS_WITHIN_S = 180.0
_OPENS_WITHIN_S = 300.0
# Tracing, XLA's compilation, cuDNN's search for algorithms
_FIRST_STEP_WITHIN_S = 900.0
_STEP_WITHIN_S = 60.0
_STEPS_WITHIN = 30.0  # times as long as such a timing took before
_CHECKS_WITHIN_S = 120.0
# The fraction of a silent worker's time after which it may itself report which of its devices
# hangs.
_PATIENCE_PART = 0.5
# What the worker is doing, and how long it may be silent: None if that follows from its own timings
_ASKED: dict[type[Record], tuple[str, float | None]] = {
    Open: ("building {settings.model}", _OPENS_WITHIN_S),
    CountFlops: ("counting the step's operations", _FIRST_STEP_WITHIN_S),
    Measure: ("training with batches {split} on {names}", None),
    Pull: ("taking batches from --data", None),
    Trace: ("tracing steps on {names}", _FIRST_STEP_WITHIN_S),
    TimeBlocks: ("timing blocks of the model on {names}", None),
    Pipe: ("training in segments on {names}", None),
    Survey: ("asking TensorFlow for its GPUs", _CHECKS_WITHIN_S),
    Inspect: ("loading TensorFlow and its libraries", _CHECKS_WITHIN_S),
    Copy: ("copying between {names}", _CHECKS_WITHIN_S),
    Reduce: ("summing over {names}", _CHECKS_WITHIN_S),
}
_KINDS: dict[str, type[GpubalanceError]] = {"refused": Refused, "input": BadInput}


class Worker:
    """A model on some devices, in a `process` that sees only these. A `Party` starts it.

    Over several hosts it is one process for each device.

    It loads TensorFlow as soon as it is started, and touches no device before a request. To train,
    it is opened once, and then measures any number of splits. `deadline_s`, if given, is the
    longest silence to wait out, instead of what suits the request; `limit` ends every wait.

    Every request raises OutOfMemory (with the device, if TensorFlow names it), EnvironmentFault for
    what the device or the machine can't do, BadInput for a model that can't be trained,
    PartialResult if the worker has died, DeadlinePassed if it is silent, and TimeLimitPassed.
    """

    facts: Ready  # about the model, once it is open
    settings: Settings

    def __init__(
        self, devices: Sequence[Device], purpose: str, deadline_s: float | None, limit: TimeLimit
    ) -> None:
        over_hosts = len(hosts_of(devices)) > 1
        self.process: Process | Ranks = (Ranks if over_hosts else worker_process)(
            devices, purpose, limit
        )
        self.devices = tuple(devices)
        self.is_open = False
        self._deadline_s = deadline_s
        self._slowest_s: dict[Hashable, float] = {}
        # Peaks by split and `pipeline`
        self.trained: dict[tuple[Shares, bool], tuple[int | None, ...]] = {}
        # Those that are warmed up, as noted by who did it
        self.warm: set[tuple[Shares, bool]] = set()
        # The one that it holds, and the steps that warmed it up
        self.warm_pipeline: dict[Hashable, int] = {}

    def open(self, build: Build) -> None:
        """Builds the model on the devices, or in the host's memory."""
        self.settings = build.settings
        code = code_key(build.settings.model, build.settings.data) if are_reached() else None
        self.facts = self.ask(Open(devices=self.devices, code=code, **dict(build)), Ready)
        self.is_open = True

    def measure(
        self, split: Shares, *, until: Callable[[], bool] | None = None, **how: Any
    ) -> Iterator[Timing | Measured]:
        """Trains with this split as the fields of Measure say: yields each timing as it comes, and
        finally Measured.

        With `until`, other workers train at the same time, and this one goes on until `until`
        returns true after a timing. Timings that still come after that are yielded too.
        """
        request = Measure(split=split, at_once=until is not None, **how)
        for given, reply in enumerate(self.replies(request, Timing, Measured)):
            self._check(reply, given, request)
            if isinstance(reply, Measured):
                self.trained[split, request.pipeline] = reply.memory_peak_bytes
            yield reply
            if until is not None and until():
                self.process.send(Stop())
                until = None

    def pipe(self, request: Pipe) -> Iterator[Timing | Measured]:
        """Trains in these segments: yields each timing as it comes, and finally Measured.

        OutOfMemory, and DeadlinePassed for a hanging device, name the device and what it was doing.
        """
        patience_s = _PATIENCE_PART * (self._deadline_s or _FIRST_STEP_WITHIN_S)
        return self.replies(request.model_copy(update={"patience_s": patience_s}), Timing, Measured)

    def ask(self, request: AnyRequest, wanted: type[Reply]) -> Reply:
        """The worker's reply if it is of the wanted kind; otherwise raises what the reply says."""
        reply: Reply = next(self.replies(request, wanted))
        return reply

    def replies(self, request: AnyRequest, *kinds: type[Any]) -> Iterator[Any]:
        """All replies to a request, of these kinds; the last kind comes once, at the end. Else
        raises what one says.

        Without a limit of its own it may be as silent as suits the slowest timing of such steps so
        far.
        """
        doing, within_s = _ASKED[type(request)]
        doing = doing.format(names=self.names, **dict(request))
        split, steps = getattr(request, "split", None), getattr(request, "steps_per_timing", 1)
        key = (split, request.stamped, request.pipeline) if isinstance(request, Measure) else None
        loads_s = 0.0 if self.process.has_answered else LOADS_WITHIN_S
        slowest_s = self._slowest_s.get(key)
        self.process.send(request)
        while True:
            patience_s = within_s + loads_s if within_s else _patience_s(slowest_s, steps)
            try:
                reply = self.process.receive(self._deadline_s or patience_s, doing)
            except TimeLimitPassed:
                raise
            except DeadlinePassed as error:
                # Over hosts there is no other
                if (
                    split is not None
                    and isinstance(self.process, Process)
                    and len(self.devices) > 1
                ):
                    other = "auto" if self.settings.all_reduce == "one-device" else "one-device"
                    hint = f"try another all-reduce, which may be what hangs: --all-reduce {other}"
                    error.remedy = f"{hint}\n{error.remedy}"
                raise
            if not isinstance(reply, kinds):
                self._fail(reply, split)
            if isinstance(reply, Timing):
                slowest_s = max(slowest_s or 0.0, reply.seconds / reply.steps)
                self._slowest_s.update({key: slowest_s} if key else {})
            yield reply
            if isinstance(reply, kinds[-1]):
                return

    def _check(self, reply: Timing | Measured, given: int, request: Measure) -> None:
        """Raises PartialResult if there are fewer timings than were asked for, or not one value for
        each device.
        """
        of_each: list[tuple[float | None, ...]] = []
        if isinstance(reply, Measured):
            of_each = [reply.memory_peak_bytes] if given >= request.at_least else [()]
        elif request.stamped:
            of_each = [reply.compute_s or (), reply.update_s or ()]
        if any(len(values) != len(self.devices) for values in of_each):
            raise PartialResult(
                "the worker returned fewer timings than requested", log=tail(self.process.log)
            )

    @property
    def names(self) -> str:
        """The devices' labels."""
        return ", ".join(device.label for device in self.devices)

    def _fail(self, reply: AnyReply, split: Shares | None) -> NoReturn:
        """Raises the error for a reply that was not wanted."""
        log, remedy = tail(self.process.log), f"the worker's whole log is {self.process.log}"
        if not isinstance(reply, Failed):
            raise PartialResult("the worker's message does not fit the request", log=log)
        named = 0 if len(self.devices) == 1 else reply.replica
        replica = named if named in range(len(self.devices)) else None
        where = "the run" if replica is None else self.devices[replica].label
        if reply.fault == "hang":
            raise DeadlinePassed(f"{where} hangs in {reply.doing}", remedy=remedy, log=log)
        if reply.fault == "memory":
            doing = f"in {reply.doing}" if reply.doing else "while the model was built"
            message = f"{where} ran out of memory {f'with batches {split}' if split else doing}"
            told = {"cause": reply.cause, "remedy": reply.remedy, "log": log}
            fault = EnvironmentFault(reply.message, **told) if reply.disguised else None
            if fault is not None and split is None and not reply.doing:
                raise fault  # of a model that is built: there is no smaller batch that could tell
            peaks = reply.memory_peak_bytes
            raise OutOfMemory(
                message, replica=replica, memory_peak_bytes=peaks, log=log, fault=fault
            )
        kind = _KINDS.get(reply.fault, EnvironmentFault)
        # A fault in the user's model has their own traceback as its message, which the log would
        # only repeat.
        log = "" if issubclass(kind, BadInput) else log
        raise kind(reply.message, cause=reply.cause, remedy=reply.remedy or remedy, log=log)


def _patience_s(slowest_s: float | None, steps: int) -> float:
    """How long so many steps may take; `slowest_s` is the slowest such step so far."""
    return (
        _FIRST_STEP_WITHIN_S
        if slowest_s is None
        else max(_STEP_WITHIN_S, _STEPS_WITHIN * slowest_s * steps)
    )
