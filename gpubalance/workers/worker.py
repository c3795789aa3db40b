"""The requests that a worker answers, and how long it may be silent meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeVar

from gpubalance.devices.hosts import are_reached
from gpubalance.errors import DeadlinePassed, PartialResult, TimeLimitPassed
from gpubalance.results.timing import Overhead, Timing
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.code import code_key
from gpubalance.settings.device import Device, hosts_of
from gpubalance.settings.record import Record
from gpubalance.settings.settings import Settings
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.failures import error_of, tail
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
    TimeSums,
    Trace,
)
from gpubalance.workers.process import Process
from gpubalance.workers.ranks import Ranks, worker_process

# TensorFlow, from a slow disk, and the GPUs; counted before the first answer
LOADS_WITHIN_S = 180.0
_OPENS_WITHIN_S = 300.0
# Tracing, XLA's compilation, cuDNN's search for algorithms
FIRST_STEP_WITHIN_S = 900.0
_STEP_WITHIN_S = 60.0
_STEPS_WITHIN = 30.0  # times as long as such a timing took before
_CHECKS_WITHIN_S = 120.0
# The fraction of a silent worker's time after which it may itself report which of its devices
# hangs.
PATIENCE_PART = 0.5
# What the worker is doing, and how long it may be silent: None if that follows from its own timings
ASKED: dict[type[Record], tuple[str, float | None]] = {
    Open: ("building {settings.model}", _OPENS_WITHIN_S),
    CountFlops: ("counting the step's operations", FIRST_STEP_WITHIN_S),
    Measure: ("training with batches {split} on {names}", None),
    Pull: ("taking batches from --data", None),
    Trace: ("tracing steps on {names}", FIRST_STEP_WITHIN_S),
    TimeSums: ("summing gradients over {names}", FIRST_STEP_WITHIN_S),
    TimeBlocks: ("timing blocks of the model on {names}", None),
    Pipe: ("training in segments on {names}", None),
    Survey: ("asking TensorFlow which GPUs it can use", _CHECKS_WITHIN_S),
    Inspect: ("loading TensorFlow and its libraries", _CHECKS_WITHIN_S),
    Copy: ("copying between {names}", _CHECKS_WITHIN_S),
    Reduce: ("summing over {names}", _CHECKS_WITHIN_S),
}


def patience_for(steps: int, slowest_s: float | None) -> float:
    """Seconds that so many steps may take; `slowest_s` is the slowest such step so far."""
    if slowest_s is None:
        return FIRST_STEP_WITHIN_S
    return max(_STEP_WITHIN_S, _STEPS_WITHIN * slowest_s * steps)


Reply = TypeVar("Reply", bound=AnyReply)


class Worker:
    """A model on some devices, in a `process` that sees only these. A `WorkerGroup` starts it.

    Over several hosts it is one process for each device.

    It loads TensorFlow as soon as it is started, and touches no device before a request. To train,
    it is opened once, and then measures any number of splits. `deadline_s`, if given, is the
    longest silence to wait out, instead of what suits the request; `limit` ends every wait. `note`
    is called with what each first step of a split took.

    Every request raises OutOfMemory (with the device, if TensorFlow names it), EnvironmentFault for
    what the device or the machine can't do, BadInput for a model that can't be trained,
    PartialResult if the worker has died, DeadlinePassed if it is silent, and TimeLimitPassed.
    """

    facts: Ready  # about the model, once it is open
    settings: Settings
    process: Process | Ranks

    def __init__(
        self,
        devices: Sequence[Device],
        purpose: str,
        deadline_s: float | None,
        limit: TimeLimit,
        note: Callable[[Overhead], None] = lambda _: None,
    ) -> None:
        if len(hosts_of(devices)) > 1:
            self.process = Ranks(devices, purpose, limit)
        else:
            self.process = worker_process(devices, purpose, limit)
        self.devices = tuple(devices)
        self.is_open = False
        self._deadline_s = deadline_s
        self._note = note
        self._slowest_s: dict[Hashable, float] = {}
        self._traced: set[BatchSplit] = set()

    def open(self, build: Build) -> None:
        """Builds the model on the devices, or in the host's memory."""
        self.settings = build.settings
        code = None
        if are_reached():
            code = code_key(build.settings.model, build.settings.data)
        request = Open(devices=self.devices, code=code, **dict(build))
        self.facts = self.ask(request, Ready)
        self.is_open = True

    def measure(
        self,
        split: BatchSplit,
        *,
        seconds: float = 0.0,
        at_least: int = 1,
        steps_per_timing: int = 1,
        stamped: bool = False,
        pipeline: bool = False,
        until: Callable[[], bool] | None = None,
    ) -> Iterator[Timing | Measured]:
        """Trains with this split as the fields of Measure say.

        Yields each timing as it comes, and finally Measured. With `until`, other workers train at
        the same time, and this one goes on until `until` returns true after a timing. Timings that
        still come after that are yielded too.
        """
        request = Measure(
            split=split,
            seconds=seconds,
            at_least=at_least,
            steps_per_timing=steps_per_timing,
            stamped=stamped,
            at_once=until is not None,
            pipeline=pipeline,
        )
        began_s = time.monotonic()
        for number, reply in enumerate(self.replies(request, Timing, Measured)):
            self._check(reply, number, request)
            if split not in self._traced:
                self._traced.add(split)
                took_s = time.monotonic() - began_s
                self._note(Overhead(traced=1, tracing_s=took_s))
            yield reply
            if until is not None and until():
                self.process.send(Stop())
                until = None

    def pipe(self, request: Pipe) -> Iterator[Timing | Measured]:
        """Trains in these segments: yields each timing as it comes, and finally Measured.

        OutOfMemory, and DeadlinePassed for a hanging device, name the device and what it was doing.
        """
        patience_s = PATIENCE_PART * (self._deadline_s or FIRST_STEP_WITHIN_S)
        return self.replies(
            request.model_copy(update={"patience_s": patience_s}), Timing, Measured
        )

    def ask(self, request: AnyRequest, wanted: type[Reply]) -> Reply:
        """The worker's reply if it is of the wanted kind; otherwise raises what the reply says."""
        reply: Reply = next(self.replies(request, wanted))
        return reply

    def replies(self, request: AnyRequest, *kinds: type[Any]) -> Iterator[Any]:
        """All replies to a request, of these kinds; the last kind comes once, at the end.

        Raises what any other reply says. Without a limit of its own the worker may be as silent as
        suits the slowest timing of such steps so far.
        """
        doing, within_s = ASKED[type(request)]
        doing = doing.format(names=self._names, **dict(request))
        split = getattr(request, "split", None)
        steps = getattr(request, "steps_per_timing", 1)
        key = None
        if isinstance(request, Measure):
            key = (split, request.stamped, request.pipeline)
        slowest_s = self._slowest_s.get(key)
        if within_s is not None and not self.process.worker_has_answered:
            within_s += LOADS_WITHIN_S
        self.process.send(request)
        while True:
            patience_s = self._deadline_s or within_s or patience_for(steps, slowest_s)
            try:
                reply = self.process.receive(patience_s, doing)
            except TimeLimitPassed:
                raise
            except DeadlinePassed as error:
                if split is not None:
                    self._suggest_all_reduce(error)
                raise
            log = self.process.log
            if isinstance(reply, Failed):
                raise error_of(reply, self.devices, split, log)
            if not isinstance(reply, kinds):
                raise PartialResult(
                    "the worker's reply does not fit the request", log=tail(log)
                )
            if isinstance(reply, Timing):
                slowest_s = max(slowest_s or 0.0, reply.seconds / reply.steps)
                if key is not None:
                    self._slowest_s[key] = slowest_s
            yield reply
            if isinstance(reply, kinds[-1]):
                return

    def _suggest_all_reduce(self, error: DeadlinePassed) -> None:
        # Over hosts there is no other
        if isinstance(self.process, Process) and len(self.devices) > 1:
            other = "auto" if self.settings.all_reduce == "one-device" else "one-device"
            hint = (
                f"try another all-reduce, in case this one hangs: --all-reduce {other}"
            )
            error.remedy = f"{hint}\n{error.remedy}"

    def _check(self, reply: Timing | Measured, number: int, request: Measure) -> None:
        """Raises PartialResult for fewer timings than were asked for, or values for each device."""
        is_whole = True
        if isinstance(reply, Measured):
            is_whole = number >= request.at_least and self._has_each(
                reply.memory_peak_bytes
            )
        elif request.stamped:
            is_whole = self._has_each(reply.compute_s) and self._has_each(
                reply.update_s
            )
        if not is_whole:
            raise PartialResult(
                "the worker returned fewer timings than requested",
                log=tail(self.process.log),
            )

    def _has_each(self, values: Sequence[float | None] | None) -> bool:
        return len(values or ()) == len(self.devices)

    @property
    def _names(self) -> str:
        return ", ".join(device.label for device in self.devices)
