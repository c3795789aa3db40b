"""A child that holds a model on its devices, and trains with whatever split it is asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn

from gpubalance.errors import (
    BadInput,
    DeadlinePassed,
    EnvironmentFault,
    GpubalanceError,
    OutOfMemory,
    PartialResult,
    TimeLimitPassed,
)
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.requests import Settings, Tracing
from gpubalance.settings.shares import Shares
from gpubalance.system.deadlines import NO_LIMIT, TimeLimit
from gpubalance.workers.messages import (
    AnyReply,
    CountFlops,
    Failed,
    Flops,
    Measure,
    Measured,
    Open,
    Ready,
    Survey,
    Surveyed,
    Timing,
    Trace,
    Traced,
)
from gpubalance.workers.process import Process, child_environment

# Silence, not slowness, ends a child. These are for what says nothing while it works.
_OPENS_WITHIN_S = 300.0
_FIRST_STEP_WITHIN_S = 900.0  # tracing, XLA's compilation, cuDNN's search for algorithms
_STEP_WITHIN_S = 60.0
_STEPS_WITHIN = 30.0  # times the time that such a timing took before


class Worker(Process):
    """Started with devices; then `open` once, and `measure` as often as wanted, with any split.

    It loads TensorFlow as soon as it is started, and touches no device before it is opened. `deadline_s`, where it is
    given, is the longest silence that is waited out, instead of what suits the step; `limit` ends every wait.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        purpose: str = "run",
        *,
        deadline_s: float | None = None,
        limit: TimeLimit = NO_LIMIT,
    ) -> None:
        super().__init__(purpose, child_environment(devices), limit)
        self._devices = tuple(devices)
        self._deadline_s = deadline_s
        self._slowest_s: dict[tuple[object, ...], float] = {}

    def open(self, settings: Settings, joint: JointProfile, *, seed: int) -> None:
        """Builds the model on the devices. It ends where that fails.

        Raises OutOfMemory, EnvironmentFault for a device that TensorFlow can't use, BadInput for a model that can't
        be built, and what `receive` does.
        """
        self._all_reduce = settings.all_reduce
        try:
            self.send(Open(devices=self._devices, settings=settings, joint=joint, seed=seed))
            reply = self.receive(self._deadline_s or _OPENS_WITHIN_S, f"building {settings.model}")
            if not isinstance(reply, Ready):
                self._fail(reply)
            self.facts = reply
        except BaseException:
            self.end()
            raise

    def forward_flops(self) -> float | None:
        """Operations of one sample's forward pass, as TensorFlow counts them; None where it can't."""
        self.send(CountFlops())
        reply = self.receive(self._deadline_s or _FIRST_STEP_WITHIN_S, "counting the model's operations")
        if not isinstance(reply, Flops):
            self._fail(reply)
        return reply.forward

    def measure(
        self,
        split: Shares,
        *,
        seconds: float = 0.0,
        at_least: int = 1,
        steps_per_timing: int = 1,
        stamped: bool = False,
    ) -> Iterator[Timing | Measured]:
        """Trains with this split: yields each timing as it comes, and at the end what Measured says.

        Raises OutOfMemory (which device, where TensorFlow says it), PartialResult for a dead child, DeadlinePassed
        for a silent one, BadInput for a model that can't be trained.
        """
        request = Measure(
            split=split,
            seconds=seconds,
            at_least=at_least,
            steps_per_timing=steps_per_timing,
            stamped=stamped,
        )
        self.send(request)
        doing = f"training with batches {split} on {self._names()}"
        key = (split, stamped)
        given = 0
        while True:
            reply = self._heard(self._patience_s(key, steps_per_timing), doing)
            self._check(reply, stamped=stamped)
            if isinstance(reply, Timing):
                given += 1
                self._slowest_s[key] = max(self._slowest_s.get(key, 0.0), reply.seconds / reply.steps)
                yield reply
            elif isinstance(reply, Measured):
                if given < at_least:
                    raise self.unreadable(f"{given} timings, where at least {at_least} were asked for")
                yield reply
                return
            else:
                self._fail(reply, str(split))

    def trace(self, split: Shares, tracing: Tracing) -> str | None:
        """Trains some steps with this split under TensorFlow's profiler; why not every GPU is in the trace, or None.

        Raises EnvironmentFault where there is no trace, and what `receive` does.
        """
        self.send(Trace(split=split, tracing=tracing))
        reply = self.receive(self._deadline_s or _FIRST_STEP_WITHIN_S, f"tracing steps on {self._names()}")
        if not isinstance(reply, Traced):
            self._fail(reply)
        return reply.missing

    def _check(self, reply: AnyReply, *, stamped: bool) -> None:
        """Raises PartialResult where it does not say of each device what it should."""
        of_each: tuple[float | None, ...] | None = reply.memory_peak_bytes if isinstance(reply, Measured) else None
        if isinstance(reply, Timing) and stamped:
            of_each = reply.compute_s or ()
        if of_each is not None and len(of_each) != len(self._devices):
            raise self.unreadable(f"{len(of_each)} values for {len(self._devices)} devices")

    def _heard(self, within_s: float, doing: str) -> AnyReply:
        """As `receive`; but of a step the remedy is for one device or for several, whose all-reduce may hang."""
        try:
            return self.receive(within_s, doing)
        except DeadlinePassed as error:
            if len(self._devices) > 1 and not isinstance(error, TimeLimitPassed):
                other = "one-device" if self._all_reduce == "hierarchical" else "hierarchical"
                error.remedy = f"try another all-reduce, which may be what hangs: --all-reduce {other}\n{error.remedy}"
            raise

    def _patience_s(self, key: tuple[object, ...], steps: int) -> float:
        if self._deadline_s is not None:
            return self._deadline_s
        known = self._slowest_s.get(key)
        return _FIRST_STEP_WITHIN_S if known is None else max(_STEP_WITHIN_S, _STEPS_WITHIN * known * steps)

    def _names(self) -> str:
        return ", ".join(d.label for d in self._devices)

    def _fail(self, reply: object, split: str = "") -> NoReturn:
        if not isinstance(reply, Failed):
            raise PartialResult("the worker's message does not fit the request", log=self.log_tail())
        if reply.fault == "memory":
            known = reply.replica is not None and reply.replica < len(self._devices)
            where = self._devices[reply.replica or 0].label if known else "the run"
            doing = f"with batches {split}" if split else "while the model was built"
            message = f"{where} ran out of memory {doing}"
            raise OutOfMemory(
                message,
                replica=reply.replica if known else None,
                memory_peak_bytes=reply.memory_peak_bytes,
                log=self.log_tail(),
            )
        kind: type[GpubalanceError] = BadInput if reply.fault == "input" else EnvironmentFault
        # The user's own traceback is the message of a fault in their model; the log would only repeat it.
        log = "" if reply.fault == "input" else self.log_tail()
        remedy = reply.remedy or f"the worker's whole log is {self.log}"
        raise kind(reply.message, cause=reply.cause, remedy=remedy, log=log)


def survey(devices: Sequence[Device]) -> dict[str, str]:
    """UUID → why, of each GPU that TensorFlow can't use. Starts a child for it, which takes some seconds."""
    with Process("survey", child_environment(devices)) as process:
        process.send(Survey(devices=tuple(devices)))
        reply = process.receive(_OPENS_WITHIN_S, "asking TensorFlow for its GPUs")
        if isinstance(reply, Surveyed):
            return reply.missing
        why = reply.message if isinstance(reply, Failed) else "TensorFlow did not answer"
        return {d.uuid: why for d in devices}
