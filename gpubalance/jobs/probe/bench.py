"""A device under probe: which batches were tried with what outcome, and the journal of that."""

from __future__ import annotations

import time
from collections import defaultdict
from functools import partial

from gpubalance.errors import (
    BadInput,
    DeadlinePassed,
    EnvironmentFault,
    GpubalanceError,
    GpuLost,
    OutOfMemory,
    PartialResult,
    Refused,
)
from gpubalance.jobs.events import Doing, PointDone, TrialDone, Watch
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.measure.length import Length
from gpubalance.jobs.measure.lost import lost_gpus_told
from gpubalance.jobs.measure.refused import refuse
from gpubalance.jobs.measure.sensors import check_memory
from gpubalance.jobs.probe.attempt import Attempt
from gpubalance.jobs.probe.halt import Halt
from gpubalance.jobs.probe.point import measure_point
from gpubalance.results.probe import CurvePoint, Outcome, Trial
from gpubalance.settings.requests import ProbeRequest
from gpubalance.workers.messages import Ready
from gpubalance.workers.party import Build, Party


class Bench:
    """One device, measured alone. Its `party` has one worker at a time; the caller must end it."""

    def __init__(self, number: int, request: ProbeRequest, journal: Journal, halt: Halt, watch: Watch) -> None:
        self.device = request.devices[number]
        self.request = request
        self.journal = journal
        self._halt = halt
        self.watch = watch
        self.length = Length.of_point(request.duration_s)
        # A death may have been the machine's fault and mended since: that batch is tried again.
        self._known: dict[int, list[Attempt]] = defaultdict(list)
        for attempt in journal.of(self.device.uuid, Attempt):
            if not attempt.died:
                self._known[attempt.trial.batch].append(attempt)
        self.party = Party(
            [self.device],
            build=Build(request.settings, seed=request.seed),
            purpose="probe",
            deadline_s=request.deadline_s,
            limit=halt.limit,
        )
        self.following: Party | None = None  # loads while this device's last worker builds its model
        self.facts: Ready | None = next(iter(journal.of(self.device.uuid, Ready)), None)
        self._passed: set[int] = set()
        self.points: dict[int, CurvePoint] = {}  # the curve so far, also after an interrupt
        self.here: list[CurvePoint] = []  # what the living worker has measured, in order
        self.began_s = 0.0  # when its first measurement began, on the monotonic clock
        self.measured_s = 0.0
        self.deaths: list[GpubalanceError] = []
        self.fault: GpubalanceError | None = None  # an error before any smaller batch had passed
        self.trials: list[Trial] = []

    @property
    def memory_bytes(self) -> int | None:
        """What the device's allocator may take, less the margin. None if unknown, as before the model is built."""
        limit = self.facts.memory_limit_bytes[0] if self.facts else None
        return None if limit is None else max(0, limit - self.request.margin_bytes)

    def tell(self, text: str) -> None:
        """Emits what is done now, after the device's label."""
        self.watch(Doing(f"{self.device.label}: {text}"))

    @property
    def in_pieces(self) -> bool:
        """Whether earlier batches fragment a worker's memory: always, unless the memory is a profile's."""
        return self.device.profile is None or self.device.profile.memory is None

    def try_batch(
        self,
        batch: int,
        reason: str,
        *,
        within: float,
        trial: bool = False,
        fresh: bool = False,
        last: bool = False,
    ) -> Attempt:
        """Trains with a batch and measures it to `within` that part, unless an interrupted probe has left the answer.

        A `trial` gets a `fresh` worker if memory is `in_pieces`, or if it is repeated. With `last` no further worker of
        this device is loaded ahead. A worker's death says nothing certain about the batch, which is tried once more in
        a fresh one; if that dies too, the batch counts as one that does not train, provided that another batch does.
        Raises EnvironmentFault, BadInput, TimeLimitPassed, Interrupted, and a worker's death if no batch has passed.
        """
        measure = partial(self._try, batch, length=self.length.until(within), last=last)
        attempt = self._answer(batch, trial=trial) or measure(
            reason=reason, fresh=fresh or (trial and (self.in_pieces or bool(self._known[batch])))
        )
        if self._is_uncertain(attempt):
            self._keep(attempt, trial=True)
            attempt = measure(reason=f"once more, as {attempt.doubt}", fresh=True)
        self._keep(attempt, trial=trial or attempt.point is None)
        if attempt.died and not self._passed and self.deaths:
            raise self.deaths[-1]
        return attempt

    def _answer(self, batch: int, *, trial: bool) -> Attempt | None:
        """The known attempt for a batch, or None. A failure in fragmented memory does not answer a trial.

        A trial that failed and is asked for again is tried again, once.
        """
        known = self._known[batch]
        if not trial:
            return known[-1] if known else None
        sure = [attempt for attempt in known if attempt.point or attempt.trial.fresh or not self.in_pieces]
        untold = next((attempt for attempt in sure if attempt.trial not in self.trials), None)
        return untold or (sure[-1] if sure and len(known) > 1 else None)

    def _is_uncertain(self, attempt: Attempt) -> bool:
        """Whether to try again: after a death, or an out-of-memory in a worker that trained a larger batch before."""
        in_pieces = not attempt.trial.fresh and max(self._passed, default=0) > attempt.trial.batch
        return attempt.died or (attempt.trial.outcome == "oom" and in_pieces)

    def _keep(self, attempt: Attempt, *, trial: bool) -> None:
        known = self._known[attempt.trial.batch]
        if attempt not in known:
            known.append(attempt)
            self.journal.add(self.device.uuid, attempt)
        if trial and attempt.trial not in self.trials:
            self.trials.append(attempt.trial)
            self.watch(TrialDone(self.device, attempt.trial))
        if attempt.point is not None:
            self._passed.add(attempt.trial.batch)
            self.points[attempt.trial.batch] = attempt.point
            self.watch(PointDone(self.device, attempt.point))

    def _try(self, batch: int, *, reason: str, length: Length, fresh: bool, last: bool) -> Attempt:
        self._halt.check()
        began = time.monotonic()
        fresh = fresh or not self.party.alive
        point, peak = None, None
        outcome: Outcome = "fits"
        try:
            self.ready(fresh=fresh, last=last)
            point = self.measured(batch, length)
            peak = point.memory_peak_bytes
        except OutOfMemory as error:
            outcome, peak = "oom", next(iter(error.memory_peak_bytes), None)
        except (DeadlinePassed, PartialResult) as error:
            self._halt.check()  # we may have killed the worker ourselves
            if isinstance(error, GpuLost):
                raise
            outcome = "deadline" if isinstance(error, DeadlinePassed) else "crash"
            self.deaths.append(error)
        if point is not None and peak is not None and self.memory_bytes is not None and peak > self.memory_bytes:
            outcome, point = "margin", None
        if point is None and (self.in_pieces or outcome not in ("oom", "margin")):
            self.drop()
        spent_s = time.monotonic() - began
        trial = Trial(batch=batch, outcome=outcome, seconds=spent_s, reason=reason, fresh=fresh, memory_peak_bytes=peak)
        return Attempt(trial=trial, point=point)

    def measured(self, batch: int, length: Length) -> CurvePoint:
        """Measures a point with the worker that is ready.

        cuDNN and cuBLAS report a lack of memory in many ways, some of which read like a fault of the model. It is
        memory only if a smaller batch trains: then this raises OutOfMemory. If none has yet, `fault` keeps the error.
        """
        try:
            return self._measured(batch, length)
        except Refused:
            raise
        except (EnvironmentFault, BadInput) as error:
            smaller_passed = any(smaller < batch for smaller in self._passed)
            if not smaller_passed and (batch == 1 or isinstance(error, BadInput)):
                raise
            self.fault = self.fault or (None if smaller_passed else error)
            raise OutOfMemory(error.message, log=error.log) from None

    def _measured(self, batch: int, length: Length) -> CurvePoint:
        began = time.monotonic()
        measure = partial(
            measure_point,
            batch=batch,
            length=length,
            until_s=self._halt.limit.until_s,
            gpu=self.device.uuid if self.device.told_by_nvml else None,
            first=not self._passed,
            least_samples=self.request.least_samples,
        )
        with lost_gpus_told([self.device]):
            point, measured_s = self.party.ask(measure)
        check_memory(self.device, point.telemetry, f" at batch {batch}")
        self.began_s = self.began_s or began
        self.measured_s += measured_s
        self.here.append(point)
        return point

    def ready(self, *, fresh: bool = False, last: bool = False) -> None:
        """Ensures that a worker with the model lives, starting one if needed. Raises what a `Worker` does."""
        self._halt.check()
        if self.party.alive and not fresh:
            return
        self.drop()
        with lost_gpus_told([self.device]):
            self.party.start(then=self._then(last=last) if self.request.ahead else None)
        if self.facts is None:
            self.facts = self.party.facts
            self.journal.add(self.device.uuid, self.facts)
        if self.request.for_split:
            refuse(self.facts)

    def _then(self, *, last: bool) -> Party | None:
        """The party to load ahead: this one if it will need another worker, else the one that measures next."""
        return self.party if self.in_pieces and not last else self.following

    def lose(self, error: GpubalanceError) -> None:
        """Gives the worker up after an error outside `try_batch`. Raises the error if the GPU is lost."""
        self._halt.check()
        if isinstance(error, GpuLost):
            raise error
        if not isinstance(error, OutOfMemory):
            self.deaths.append(error)
        self.drop()

    def drop(self) -> None:
        """Ends the living worker; the next measurement gets a fresh one."""
        self.party.drop()
        self.here = []
        self.began_s = 0.0
