"""The attempts on a device: which batches were tried, with what outcome, and their points."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from gpubalance.errors import (
    BadInput,
    DeadlinePassed,
    EnvironmentFault,
    GpubalanceError,
    GpuLost,
    OutOfMemory,
    PartialResult,
)
from gpubalance.jobs.events import RecordDone
from gpubalance.jobs.measure import figures
from gpubalance.jobs.measure.out_of_memory import may_be_memory
from gpubalance.jobs.measure.stopping import PRECISE_ENOUGH, StoppingRule
from gpubalance.jobs.measure.warnings import CLEARLY, FIRST, too_slow
from gpubalance.jobs.measure.window import Sensors, Workload
from gpubalance.jobs.measure.workload_runner import (
    WorkloadRunner,
    step_s_of,
    steps_per_timing,
    train_until_settled,
)
from gpubalance.jobs.probe.probe_worker import ProbeWorker
from gpubalance.jobs.probe.time_left import point_s
from gpubalance.numbers.steady import is_steady
from gpubalance.planning.curve import wanted_precision
from gpubalance.planning.model import LINE_WITHIN
from gpubalance.results.probe import CurvePoint, Outcome, Trial, peaks_by_batch
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import JointProfile
from gpubalance.settings.record import Record, Seconds
from gpubalance.workers.worker import Worker

# A try for the limit also measures the step time if that takes at most this long: to do so later
# may need a fresh worker, which costs more. Otherwise the try only shows that the batch trains.
_LONGEST_TRY_S = 5.0
# The second step has what the first one allocated, and its own gradients beside it.
_SHOWING_STEPS = 2


class Attempt(Record):
    """A batch that was tried, and its point on the curve if it trains and its time was measured.

    Of one that was only shown to train, `step_s` is the time of a single step.
    """

    trial: Trial
    point: CurvePoint | None = None
    step_s: Seconds | None = None

    @property
    def trains(self) -> bool:
        """Whether the device trains with the batch."""
        return self.trial.outcome == "fits"

    @property
    def died(self) -> bool:
        """Whether the worker died or fell silent, which says nothing certain about the batch."""
        return self.trial.outcome in ("crash", "deadline")

    @property
    def doubt(self) -> str:
        """Why the batch should be tried once more."""
        deaths = {"crash": "the worker died", "deadline": "the worker sent nothing"}
        # Without a death it ran out of memory in a used worker.
        return deaths.get(self.trial.outcome, "a larger batch passed")


class _Asked(NamedTuple):
    """What is asked of a try of a batch: see `Attempts.try_batch`."""

    batch: int
    reason: str
    rule: StoppingRule
    for_limit: bool
    last: bool


@dataclass
class Attempts:
    """What was tried on a device's `probe_worker`. What an interrupted probe left is used."""

    probe_worker: ProbeWorker
    # The first error that may be a lack of memory though no smaller batch had passed
    fault: GpubalanceError | None = None
    # Seconds of all timings, without those that an interrupted probe left
    measured_s: float = 0.0
    # The curve so far, by batch, also after an interrupt
    points: dict[int, CurvePoint] = field(default_factory=dict)
    # Those of the limit, and all that failed
    trials: list[Trial] = field(default_factory=list)
    # The batches of the curve that failed though larger ones train: `fill_curve` adds them.
    skipped: list[int] = field(default_factory=list)
    # How long a point of the curve is measured
    rule: StoppingRule = field(init=False)
    _tries: dict[int, list[Attempt]] = field(default_factory=lambda: defaultdict(list))
    # Whether attempts of an interrupted probe are used
    _uses_kept: bool = field(init=False)

    def __post_init__(self) -> None:
        probe_worker = self.probe_worker
        self.rule = StoppingRule.of_point(probe_worker.request.duration_s)
        kept = []
        for key, attempt in probe_worker.journal.load_all(Attempt).items():
            if key.startswith(f"{probe_worker.device.uuid} "):
                kept.append(attempt)
        self._uses_kept = any(attempt.trains for attempt in kept)
        if kept and not self._uses_kept:
            # Another program may have held the memory: a new worker tells how much there is.
            probe_worker.facts = None

    @property
    def _for_split(self) -> bool:
        return self.probe_worker.request.for_split

    @property
    def _is_first(self) -> bool:
        """Whether no batch has a point yet."""
        return not self.points

    @property
    def rule_again(self) -> StoppingRule:
        """How long a point is measured once more: until it is at least as exact as at first."""
        return self.rule.until(LINE_WITHIN) if self._for_split else self.rule

    def precision(self, batch: int, largest: float) -> float:
        """How exactly a step time must be known: half of its 95 % interval, as a fraction of it.

        For a split that is ± 3 %, whatever the batch: it is enough for a line, and the rounds that
        follow measure the batches that they choose more exactly.
        """
        return LINE_WITHIN if self._for_split else wanted_precision(batch, largest)

    def single_steps(self) -> dict[int, float]:
        """The seconds of one step of each batch that was only shown to train."""
        steps_s = {}
        for batch, tries in self._tries.items():
            if tries[-1].trains and tries[-1].step_s is not None:
                steps_s[batch] = tries[-1].step_s
        return steps_s

    def points_up_to(self, largest: int) -> list[CurvePoint]:
        """The points of batches up to the largest, in the order of measuring."""
        return [point for point in self.points.values() if point.batch <= largest]

    def try_batch(
        self,
        batch: int,
        reason: str,
        *,
        within: float,
        for_limit: bool = False,
        fresh: bool = False,
        last: bool = False,
    ) -> Attempt:
        """Trains with a batch until its step time is known to ± `within`, a fraction.

        - A batch of the curve is tried once, one `for_limit` a second time if asked for again.
        - One `for_limit` only shows that it trains if measuring its step time would take long.
        - It is tried in the present worker, or in a new one if `fresh`. One `for_limit` gets a new
          one if it was tried before or may need most of the memory.
        - With `last` no further worker of this device is loaded ahead.
        - After a worker's death the batch is tried once more in a new one: the death says nothing
          certain about the batch. If that one dies too, the batch counts as one that does not
          train, provided that another batch does.
        - After an out of memory in a used worker it is tried once more as well, if a larger batch
          has passed.

        Raises EnvironmentFault, BadInput, TimeLimitPassed, GpuLost, UsageError if this machine is
        too slow for the device's profile, and a worker's death if no batch has passed.
        """
        tries = self._tries[batch]
        if for_limit:
            # The search asks again for a failure that may be chance.
            is_known = len(tries) > 1
        else:
            is_known = bool(tries) and (batch in self.points or not tries[-1].trains)
        if is_known:
            return tries[-1]
        if for_limit and (tries or self._may_need_most_memory(batch)):
            fresh = True
        asked = _Asked(
            batch, reason, self.rule.until(within), for_limit=for_limit, last=last
        )
        attempt = self._next_attempt(asked, fresh=fresh)
        oom_in_fragments = attempt.trial.outcome == "oom" and not attempt.trial.fresh
        larger_passed = max(self.points, default=0) > batch
        is_doubtful = attempt.died or (oom_in_fragments and larger_passed)
        if is_doubtful:
            once_more = asked._replace(reason=f"once more, as {attempt.doubt}")
            attempt = self._next_attempt(once_more, fresh=True)
        if attempt.died and not self.points:
            raise self.probe_worker.deaths[-1]
        return attempt

    def _may_need_most_memory(self, batch: int) -> bool:
        """Whether earlier batches may have left this one too little memory in one piece.

        They have not if the batch needs at most half of the memory, even if all that the largest
        measured batch took grows in proportion.
        """
        usable_bytes = self.probe_worker.usable_bytes
        if not self.probe_worker.fragments_memory or usable_bytes is None:
            return False
        peaks = peaks_by_batch(self.points.values())
        if not peaks:
            return True
        largest, peak_bytes = peaks[-1]
        return max(1.0, batch / largest) * peak_bytes > usable_bytes / 2

    def _next_attempt(self, asked: _Asked, *, fresh: bool) -> Attempt:
        """The next try of a batch, from the journal or made now.

        A death is not kept: it may have been the machine's fault, and mended since. So may a lack
        of memory where nothing trained: what is kept of that is not used.
        """
        probe_worker = self.probe_worker
        batch = asked.batch
        tries = self._tries[batch]
        kept_tries = [attempt for attempt in tries if not attempt.died]
        key = f"{probe_worker.device.uuid} {batch} {len(kept_tries)}"
        attempt = None
        if self._uses_kept:
            attempt = probe_worker.journal.load(key, Attempt)
        if attempt is None:
            attempt = self._attempt_now(asked, fresh=fresh)
            if not attempt.died:
                probe_worker.journal.keep(key, attempt)
        tries.append(attempt)
        # A batch of the curve that fails shows something of the limit, too.
        if asked.for_limit or not attempt.trains:
            self.trials.append(attempt.trial)
            probe_worker.watch(RecordDone(attempt.trial, (probe_worker.device,)))
        if attempt.point is not None:
            self.points[batch] = attempt.point
            probe_worker.watch(RecordDone(attempt.point, (probe_worker.device,)))
        return attempt

    def _attempt_now(self, asked: _Asked, *, fresh: bool) -> Attempt:
        probe_worker = self.probe_worker
        probe_worker.time_limit.check()
        began_s = time.monotonic()
        fresh = fresh or not probe_worker.worker_group.alive
        point = None
        step_s = None
        peak_bytes = None
        outcome: Outcome = "fits"
        try:
            probe_worker.ensure_worker(fresh=fresh, last=asked.last)
            if asked.for_limit and self._takes_long(asked):
                step_s, peak_bytes = self._try_steps(asked.batch)
            else:
                point = self.measured(asked.batch, asked.rule)
                self._refuse_too_slow(point)
                peak_bytes = point.memory_peak_bytes
        except OutOfMemory as error:
            outcome = "oom"
            peak_bytes = next(iter(error.memory_peak_bytes), None)
        except (DeadlinePassed, PartialResult) as error:
            # The worker fell silent, or died. We may have killed it ourselves at the time limit:
            # then this raises TimeLimitPassed.
            probe_worker.time_limit.check()
            if isinstance(error, GpuLost):
                raise
            outcome = "crash"
            if isinstance(error, DeadlinePassed):
                outcome = "deadline"
            probe_worker.deaths.append(error)
        if outcome == "fits" and self._exceeds_usable(peak_bytes):
            point = None
            outcome = "margin"
        # A worker that failed ends. One that only lacked memory stays if a profile counts that.
        if outcome != "fits" and (
            probe_worker.fragments_memory or outcome not in ("oom", "margin")
        ):
            probe_worker.worker_group.drop()
        trial = Trial(
            batch=asked.batch,
            outcome=outcome,
            seconds=time.monotonic() - began_s,
            reason=asked.reason,
            fresh=fresh,
            memory_peak_bytes=peak_bytes,
        )
        return Attempt(trial=trial, point=point, step_s=step_s)

    def _refuse_too_slow(self, point: CurvePoint) -> None:
        """Raises UsageError if most steps took clearly longer than by the device's profile, if any.

        That is 1.1 times as long for the first batch, which is not in `points` yet, 1.5 times for
        later ones.
        """
        probe_worker = self.probe_worker
        fault = too_slow(
            [probe_worker.device],
            BatchSplit((point.batch,)),
            probe_worker.request.settings,
            JointProfile(),
            step_s=point.step_time_s.median,
            late_part=point.late_part,
            allowed=FIRST if self._is_first else CLEARLY,
        )
        if fault is not None:
            raise fault

    def _exceeds_usable(self, peak_bytes: int | None) -> bool:
        """Whether that is known to be more than may be used."""
        usable_bytes = self.probe_worker.usable_bytes
        return (
            usable_bytes is not None
            and peak_bytes is not None
            and peak_bytes > usable_bytes
        )

    def _takes_long(self, asked: _Asked) -> bool:
        """Whether measuring the batch's step time would take long, as predicted from the points.

        For a split it may take twice as long: the step time may show that no larger batch pays.
        """
        points = list(self.points.values())
        longest_s = 2 * _LONGEST_TRY_S if self._for_split else _LONGEST_TRY_S
        return bool(points) and point_s(points, asked.batch, asked.rule) > longest_s

    def _try_steps(self, batch: int) -> tuple[float, int | None]:
        with self._memory_or_fault(batch), self.probe_worker.worker() as worker:
            return try_steps(self.probe_worker, worker, batch)

    def measured(self, batch: int, rule: StoppingRule) -> CurvePoint:
        """Measures a point with the worker that is ready, or another in its place.

        Raises as `_memory_or_fault` does.
        """
        with self._memory_or_fault(batch), self.probe_worker.worker() as worker:
            point, seconds = measure_point(
                self.probe_worker, worker, batch, rule, first=self._is_first
            )
        self.measured_s += seconds
        return point

    @contextmanager
    def _memory_or_fault(self, batch: int) -> Iterator[None]:
        """Raises an error of the block as OutOfMemory if it may be a lack of memory in disguise.

        cuDNN has many such errors. If no smaller batch has passed, `fault` keeps the first of them,
        which the probe raises if no batch ever trains. Other errors pass; an OutOfMemory that can't
        be one is raised as its own `fault`.
        """
        try:
            yield
            return
        except OutOfMemory as error:
            if error.fault is None:
                raise
            fault: EnvironmentFault | BadInput = error.fault
        except (EnvironmentFault, BadInput) as error:
            fault = error
        smaller_passed = any(smaller < batch for smaller in self.points)
        if not may_be_memory(fault, batch, smaller_passed=smaller_passed):
            raise fault
        if not smaller_passed:
            self.fault = self.fault or fault
        raise OutOfMemory(fault.message, log=fault.log)


def try_steps(
    probe_worker: ProbeWorker, worker: Worker, batch: int
) -> tuple[float, int | None]:
    """Trains just enough steps to show that a batch trains.

    Returns the seconds of the last step, and the peak of the memory, if known. Raises what
    `Worker.measure` does.
    """
    runner = _runner(probe_worker, worker, batch)
    *_, last_step = runner.train(at_least=_SHOWING_STEPS)
    return step_s_of(last_step), runner.peaks[0]


def measure_point(
    probe_worker: ProbeWorker,
    worker: Worker,
    batch: int,
    rule: StoppingRule,
    *,
    first: bool,
) -> tuple[CurvePoint, float]:
    """Warms up with a batch and measures it; returns its point, and the seconds of all its timings.

    It is measured once more, and not called steady, if its step time rose, fell or changed its
    level, or NVML says that heat or the power supply throttled the GPU: then the second window
    counts. After the time limit that does not begin. Of a device's `first` batch a loss that is not
    a number is refused, with BadInput. Raises what `Worker.measure` does.
    """
    runner = _runner(probe_worker, worker, batch)
    settled = train_until_settled(runner, refuses_bad_loss=first)[-2:]
    step_s = step_s_of(settled[-1])
    # The last two steps of the warm-up are timings too, unless timings have several steps.
    if steps_per_timing(rule.timing_s, step_s) > 1:
        settled = []
    until_s = probe_worker.time_limit.until_s
    windows = [runner.window(rule, step_s, settled, until_s=until_s)]
    steady = is_steady(figures.step_times_s(windows)) and not any(
        figures.throttled(windows)
    )
    if not steady and time.monotonic() < until_s:
        windows.append(runner.window(rule, step_s, until_s=until_s))
    measured_s = sum(timing.seconds for timing in figures.timings_in(windows))
    last = windows[-1:]
    step_time = figures.step_time(last, figures.began_s(last))
    point = CurvePoint(
        batch=batch,
        step_time_s=step_time,
        throughput=figures.throughput_of(batch, step_time.samples),
        memory_peak_bytes=runner.peaks[0],
        precise=figures.precision(last) <= PRECISE_ENOUGH,
        steady=steady,
        measured_again=len(windows) > 1,
        late_part=figures.late_part(windows),
        unlike=figures.vary_in_shape(last),
        telemetry=runner.sensors.telemetry(figures.began_s(last))[0],
    )
    return point, measured_s


def _runner(probe_worker: ProbeWorker, worker: Worker, batch: int) -> WorkloadRunner:
    workload = Workload(
        BatchSplit((batch,)),
        (probe_worker.device,),
        wants_stamps=False,
        shown=False,
        least_samples=probe_worker.request.least_samples,
    )
    return WorkloadRunner(worker, workload, Sensors(workload.devices))
