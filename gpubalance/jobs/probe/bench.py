"""A device under probe: which batches were tried, with what outcome."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

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
from gpubalance.jobs.endings import lost_gpus_told, refuse
from gpubalance.jobs.events import Doing, ModelBuilt, PointDone, TrialDone, Watch
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.measure import figures
from gpubalance.jobs.measure.look import Look, step_s_of, steps_per_timing
from gpubalance.jobs.measure.sensors import Sensors
from gpubalance.jobs.measure.stopping import PRECISE_ENOUGH, StoppingRule
from gpubalance.jobs.measure.subject import Subject
from gpubalance.jobs.measure.warm_up import settle
from gpubalance.numbers.stats import median
from gpubalance.numbers.steady import is_steady
from gpubalance.results.probe import CurvePoint, Outcome, Trial
from gpubalance.results.timing import Timing
from gpubalance.settings.device import Device
from gpubalance.settings.record import Record
from gpubalance.settings.requests import ProbeRequest
from gpubalance.settings.shares import Shares
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.messages import Build, Ready
from gpubalance.workers.party import Party
from gpubalance.workers.verdicts import Verdicts
from gpubalance.workers.worker import Worker

_UPDATES = 7
_UNLIKE_STEPS = 2  # stamped steps have their own trace, whose first steps are slower

T = TypeVar("T")
R = TypeVar("R", bound=Record)


class Attempt(Record):
    """A batch that was tried, and its point on the curve if it trains."""

    trial: Trial
    point: CurvePoint | None = None

    @property
    def died(self) -> bool:
        """Whether the worker died or fell silent, which says nothing certain about the batch."""
        return self.trial.outcome in ("crash", "deadline")

    @property
    def doubt(self) -> str:
        """Why the batch should be tried once more."""
        died = {"crash": "the worker died", "deadline": "the worker fell silent"}
        return died.get(self.trial.outcome, "a larger batch passed")


@dataclass
class Bench:
    """One device, measured alone within the `time_limit`. What an interrupted probe left is used.

    Its `party` has one worker at a time; the caller must end it. `following` loads while this
    device's last worker builds its model. `points` are the curve so far, also after an interrupt;
    `fault` is an error before any smaller batch had passed.
    """

    device: Device
    request: ProbeRequest
    journal: Journal
    verdicts: Verdicts | None
    time_limit: TimeLimit
    watch: Watch
    following: Party | None = None
    fault: GpubalanceError | None = None
    measured_s: float = 0.0
    points: dict[int, CurvePoint] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)
    deaths: list[GpubalanceError] = field(default_factory=list)
    _tries: dict[int, list[Attempt]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        request = self.request
        self.rule = StoppingRule.of_point(request.duration_s)
        self.party = Party(
            [self.device],
            build=Build(settings=request.settings, seed=request.seed),
            purpose="probe",
            deadline_s=request.deadline_s,
            limit=self.time_limit,
            verdicts=self.verdicts,
        )
        self.facts = self.journal.load(self.device.uuid, Ready)

    @property
    def usable_bytes(self) -> int | None:
        """What the device's allocator may take, less the margin.

        None if unknown, as before the model is built.
        """
        limit_bytes = self.facts.memory_limit_bytes[0] if self.facts else None
        if limit_bytes is None:
            return None
        return max(0, limit_bytes - self.request.margin_bytes)

    @property
    def in_pieces(self) -> bool:
        """Whether earlier batches fragment a worker's memory: always, but for a profile's."""
        return self.device.profile is None or self.device.profile.memory is None

    def kept(self, what: str, kind: type[R], make: Callable[[], R | None]) -> R | None:
        """What an interrupted probe left of this device, else what `make` returns, which is kept.

        None is not kept.
        """
        key = f"{self.device.uuid} {what}"
        record = self.journal.load(key, kind)
        if record is None:
            record = make()
            if record is not None:
                self.journal.keep(key, record)
        return record

    def tell(self, text: str) -> None:
        """Emits what is done now, after the device's label."""
        self.watch(Doing(f"{self.device.label}: {text}"))

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
        """Trains with a batch and measures it to `within` that part.

        A `trial` gets a `fresh` worker if memory is `in_pieces`, or if it is repeated, and is
        repeated once at most. With `last` no further worker of this device is loaded ahead. A
        worker's death says nothing certain about the batch, which is tried once more in a fresh
        one; if that dies too, the batch counts as one that does not train, provided that another
        batch does. Raises EnvironmentFault, BadInput, TimeLimitPassed, and a worker's death if no
        batch has passed.
        """
        tries = self._tries[batch]
        if tries and (not trial or len(tries) > 1):
            return tries[-1]
        if trial and (self.in_pieces or tries):
            fresh = True
        rule = self.rule.until(within)
        attempt = self._attempt(batch, reason, rule, trial=trial, fresh=fresh, last=last)
        oom_in_pieces = attempt.trial.outcome == "oom" and not attempt.trial.fresh
        if attempt.died or (oom_in_pieces and max(self.points, default=0) > batch):
            reason = f"once more, as {attempt.doubt}"
            attempt = self._attempt(batch, reason, rule, trial=trial, fresh=True, last=last)
        if attempt.died and not self.points and self.deaths:
            raise self.deaths[-1]
        return attempt

    def _attempt(
        self, batch: int, reason: str, rule: StoppingRule, *, trial: bool, fresh: bool, last: bool
    ) -> Attempt:
        """One try of a batch.

        A death is not kept: it may have been the machine's fault, and mended since.
        """
        tries = self._tries[batch]
        lived = [attempt for attempt in tries if not attempt.died]
        key = f"{self.device.uuid} {batch} {len(lived)}"
        attempt = self.journal.load(key, Attempt)
        if attempt is None:
            attempt = self._try(batch, reason, rule, fresh=fresh, last=last)
            if not attempt.died:
                self.journal.keep(key, attempt)
        tries.append(attempt)
        if trial or attempt.point is None:
            self.trials.append(attempt.trial)
            self.watch(TrialDone(self.device, attempt.trial))
        if attempt.point is not None:
            self.points[batch] = attempt.point
            self.watch(PointDone(self.device, attempt.point))
        return attempt

    def _try(
        self, batch: int, reason: str, rule: StoppingRule, *, fresh: bool, last: bool
    ) -> Attempt:
        self.time_limit.check()
        began_s = time.monotonic()
        fresh = fresh or not self.party.alive
        point = peak_bytes = None
        outcome: Outcome = "fits"
        try:
            self.ready(fresh=fresh, last=last)
            point = self.measured(batch, rule)
            peak_bytes = point.memory_peak_bytes
        except OutOfMemory as error:
            outcome = "oom"
            peak_bytes = next(iter(error.memory_peak_bytes), None)
        except (DeadlinePassed, PartialResult) as error:
            self.time_limit.check()  # we may have killed the worker ourselves
            if isinstance(error, GpuLost):
                raise
            outcome = "deadline" if isinstance(error, DeadlinePassed) else "crash"
            self.deaths.append(error)
        if point is not None and self._passes_margin(peak_bytes):
            point = None
            outcome = "margin"
        if point is None and (self.in_pieces or outcome not in ("oom", "margin")):
            self.party.drop()
        trial = Trial(
            batch=batch,
            outcome=outcome,
            seconds=time.monotonic() - began_s,
            reason=reason,
            fresh=fresh,
            memory_peak_bytes=peak_bytes,
        )
        return Attempt(trial=trial, point=point)

    def _passes_margin(self, peak_bytes: int | None) -> bool:
        """Whether that is more than may be used."""
        usable_bytes = self.usable_bytes
        return usable_bytes is not None and peak_bytes is not None and peak_bytes > usable_bytes

    def measured(self, batch: int, rule: StoppingRule) -> CurvePoint:
        """Measures a point with the worker that is ready.

        cuDNN and cuBLAS report a lack of memory in many ways, some of which read like a fault of
        the model. It is memory only if a smaller batch trains: then this raises OutOfMemory. If
        none has yet, `fault` keeps the error.
        """
        try:
            return self.ask(lambda worker: self._point(worker, batch, rule))
        except OutOfMemory as error:
            if error.fault is None:
                raise
            fault: EnvironmentFault | BadInput = error.fault
        except (EnvironmentFault, BadInput) as error:
            fault = error
        smaller_passed = any(smaller < batch for smaller in self.points)
        is_bad_input = batch == 1 or isinstance(fault, BadInput)
        if isinstance(fault, Refused) or (is_bad_input and not smaller_passed):
            raise fault
        if not smaller_passed:
            self.fault = self.fault or fault
        raise OutOfMemory(fault.message, log=fault.log)

    def _point(self, worker: Worker, batch: int, rule: StoppingRule) -> CurvePoint:
        """Warms a batch size up and measures it until it is known.

        It is measured once more, and not called steady, if its step time rose, fell or changed its
        level, or NVML says that heat throttled the GPU: then the second window counts. After the
        time limit that does not begin. Raises what `Worker.measure` does.
        """
        subject = Subject(
            Shares((batch,)),
            (self.device,),
            stamped=False,
            shown=False,
            least_samples=self.request.least_samples,
        )
        look = Look(worker, subject, Sensors(subject.devices))
        settled = settle(look, refuses_bad_loss=not self.points)[-2:]
        step_s = step_s_of(settled[-1])
        if steps_per_timing(rule.timing_s, step_s) > 1:  # else those that settled it count too
            settled = []
        until_s = self.time_limit.until_s
        windows = [look.window(rule, step_s, settled, until_s=until_s)]
        steady = is_steady(figures.step_times_s(windows)) and not any(figures.throttled(windows))
        if not steady and time.monotonic() < until_s:
            windows.append(look.window(rule, step_s, until_s=until_s))
        self.measured_s += sum(timing.seconds for timing in figures.timings_in(windows))
        last = windows[-1:]
        step_time = figures.step_time(last, figures.began_s(last))
        return CurvePoint(
            batch=batch,
            step_time_s=step_time,
            throughput=figures.throughput_of(batch, step_time.samples),
            memory_peak_bytes=look.peaks[0],
            precise=figures.precision(last) <= PRECISE_ENOUGH,
            steady=steady,
            measured_again=len(windows) > 1,
            late_part=figures.late_part(windows),
            unlike=figures.are_unlike(last),
            telemetry=look.sensors.telemetry(figures.began_s(last))[0],
        )

    def ask(self, work: Callable[[Worker], T]) -> T:
        """What `work` returns with the worker. Raises its failure."""
        with lost_gpus_told([self.device]):
            return self.party.ask(work)

    def ready(self, *, fresh: bool = False, last: bool = False) -> None:
        """Starts a worker with the model unless one lives. Raises what a `Worker` does."""
        self.time_limit.check()
        if self.party.alive and not fresh:
            return
        self.party.drop()
        # Another worker of this device is loaded ahead if it will need one, else that of the next
        # device.
        following = self.party if self.in_pieces and not last else self.following
        with lost_gpus_told([self.device]):
            self.party.start(then=following if self.request.ahead else None)
        if self.facts is None:
            self.facts = self.party.facts
            self.journal.keep(self.device.uuid, self.facts)
            self._tell_of_model(self.facts)
        if self.request.for_split:
            refuse(self.facts)

    def _tell_of_model(self, facts: Ready) -> None:
        """Tells, with the first device of a balance, of a model of the user's."""
        settings, is_first = self.request.settings, self.device == self.request.devices[0]
        if self.request.for_split and is_first and settings.model_is_code:
            self.watch(ModelBuilt(settings, facts.model, facts.own_batch, facts.verdict.warned))

    def lose(self, error: GpubalanceError) -> None:
        """Gives the worker up after an error outside `try_batch`; raises that of a lost GPU."""
        self.time_limit.check()
        if isinstance(error, GpuLost):
            raise error
        if not isinstance(error, OutOfMemory):
            self.deaths.append(error)
        self.party.drop()


def measure_update(worker: Worker, batch: int) -> float:
    """The median seconds of a weight update. Raises what `Worker.measure` does."""
    count = _UNLIKE_STEPS + _UPDATES
    updates_s = []
    for reply in worker.measure(Shares((batch,)), at_least=count, stamped=True):
        if isinstance(reply, Timing):
            updates_s.append(sum(reply.update_s or ()))
    return median(updates_s[_UNLIKE_STEPS:])
