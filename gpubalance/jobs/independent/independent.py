"""`independent`: a model of its own on each device, all at once, in turns with each alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

from gpubalance.errors import (
    BadInput,
    GpubalanceError,
    NothingFits,
    OutOfMemory,
    PartialResult,
    TimeLimitPassed,
)
from gpubalance.jobs.endings import attach_partial, lost_gpus_told, one_error
from gpubalance.jobs.environment import environment
from gpubalance.jobs.events import Doing, PhaseBegun, TurnDone, Watch, one_at_a_time
from gpubalance.jobs.independent.window import AllAtOnce, AtOnce, CommonWindow, OwnReplica
from gpubalance.jobs.keep.journal import Journal, content_key
from gpubalance.jobs.keep.saved import best_joint_run
from gpubalance.jobs.keep.verdicts import KeptVerdicts
from gpubalance.jobs.measure.series import Series
from gpubalance.jobs.measure.stopping import StoppingRule
from gpubalance.jobs.measure.timings import Window
from gpubalance.jobs.measure.trace import trace
from gpubalance.jobs.measure.turns import in_turns
from gpubalance.jobs.measure.warnings import Slowed, of_figures, resumed
from gpubalance.numbers.ratio import ratio
from gpubalance.numbers.stats import interval_of_sum
from gpubalance.results.common import Throughput, Warning_, now
from gpubalance.results.independent import HeldAgainst, Independent, OwnModel
from gpubalance.results.probe import Failure
from gpubalance.settings.requests import IndependentRequest
from gpubalance.settings.shares import Shares
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.messages import Build
from gpubalance.workers.party import Party
from gpubalance.workers.worker import Worker

ALONE: Literal["alone"] = "alone"
AT_ONCE: Literal["at once"] = "at once"
T = TypeVar("T")
Work = Callable[[OwnReplica, Worker], T]


def independent(request: IndependentRequest, watch: Watch, journal: Journal) -> Independent:
    """Trains the request's models, and reports what each device gives alone and at once.

    Windows go into the `journal`; those that are already in it are not measured again. The others
    go on when a device fails. Raises, with what was measured as `partial`: PartialResult, which
    names each device that failed, or the devices' own error if all failed alike; BadInput for a
    model that can't be trained, TimeLimitPassed, Interrupted.
    """
    tell, measuring = one_at_a_time(watch), request.measuring
    journal.watch = tell
    journal.tell_resumed()
    tell(PhaseBegun("independent"))
    with Party(
        *([device] for device in request.devices),
        build=[
            Build(settings=request.settings_of(n), joint=request.joint, seed=measuring.seed)
            for n in range(len(request.devices))
        ],
        purpose="independent",
        deadline_s=measuring.deadline_s,
        limit=TimeLimit(measuring.time_limit_s),
        tell=lambda text: tell(Doing(text)),
        verdicts=KeptVerdicts(journal),
    ) as party:
        turns = Turns(request, party, journal, tell)
        with attach_partial(turns.result):
            turns.measure()
        splits = {one.number: Shares((one.batch,)) for one in turns.going}
        turns.noted = trace(party, splits, request.tracing, tell, apart=True)
        failed = turns.failed
        turns.complete = failed is None
    if failed is not None:
        failed.partial = turns.result()
        raise failed
    return cast("Independent", turns.result())  # no device failed, so each has its windows


class _DroppedOut(Exception):
    """A device failed, and the others go on without it."""


@dataclass
class Turns:
    """Windows of each device alone and of all at once, in turns. `noted` are further warnings.

    The party has a worker for each device. A device that fails drops out, with its error, and the
    others go on: what all gave at once is then measured again without it.
    """

    request: IndependentRequest
    party: Party
    journal: Journal
    watch: Watch
    noted: Sequence[Warning_] = ()
    complete: bool = False

    def __post_init__(self) -> None:
        each = enumerate(
            zip(self.request.devices, self.request.models, self.request.batches, strict=True)
        )
        self.replicas = tuple(OwnReplica(number, *own) for number, own in each)
        self._length = StoppingRule.of_window(self.request.measuring)
        self.alone = [self._together(ALONE, [one]) for one in self.replicas]
        self.at_once = self._together(AT_ONCE, self.replicas)

    def _together(self, name: Literal["alone", "at once"], those: Sequence[OwnReplica]) -> AtOnce:
        return AtOnce(name, those, self.watch, pipeline=self.request.settings.data is not None)

    @property
    def going(self) -> list[OwnReplica]:
        """The devices that have not failed."""
        return [one for one in self.replicas if one.error is None]

    @property
    def slowed(self) -> Slowed:
        """Each GPU that was throttled in the windows at once for a reason that passes, with NVML's
        reasons.
        """
        return [slowed for one in self.at_once.series.values() for slowed in one.slowed]

    def subjects(self) -> list[AtOnce]:
        """What is measured in turns: each device alone, and if there are several all at once."""
        alone = [self.alone[one.number] for one in self.going]
        return [*alone, *([self.at_once] if len(alone) > 1 else [])]

    def measure(self) -> None:
        """Measures until all is known or no device is left. Raises BadInput and TimeLimitPassed, no
        device's fault.
        """
        with suppress(_DroppedOut):
            self._each("warming up all devices at once", self._warm_up, self.replicas)
        in_turns(self.subjects, self._turn, self.request.measuring, lambda: self.slowed, self.watch)

    def _turn(self, subject: AtOnce, number: int, of: int) -> None:
        """Measures a window of all of a subject's devices; it does not count if one of
        them fails.
        """
        uuids = [one.device.uuid for one in subject.replicas]
        models = [one.facts.model for one in subject.replicas if one.facts]
        key, which = content_key(subject.name, *uuids, *models, number), f"window {number} of {of}"
        measure = self._alone if subject.name == ALONE else self._at_once
        with suppress(_DroppedOut):
            window = self.journal.get_or_make(key, AllAtOnce, lambda: measure(subject, which))
            self.watch(TurnDone(number, of, subject.name, subject.add(window)))

    def _warm_up(self, one: OwnReplica, worker: Worker) -> None:
        one.facts = worker.facts
        self.alone[one.number].series[one.number].warm_up(worker)

    def _alone(self, subject: AtOnce, which: str) -> AllAtOnce:
        def measured(one: OwnReplica, worker: Worker) -> Window:
            series = subject.series[one.number]
            series.settle(worker, first=False)  # it has been idle for a while
            return series.window(worker, self._length)

        doing = f"measuring {subject.replicas[0].device.label} alone, {which}"
        return AllAtOnce(parts=self._each(doing, measured, subject.replicas))

    def _at_once(self, subject: AtOnce, which: str) -> AllAtOnce:
        common = CommonWindow([*subject.series], self._length)

        def measure(one: OwnReplica, worker: Worker) -> None:
            """Measures until the window is over; ends it for all devices on any error."""
            series = subject.series[one.number]
            steps = (
                self.alone[one.number].series[one.number].steps_per_timing(self._length.timing_s)
            )
            try:
                with series.sensors.watching():
                    for timing in series.measure(
                        worker, steps_per_timing=steps, until=common.is_over
                    ):
                        common.take(one.number, timing, moves=series.sensors.move())
            except BaseException:
                common.leave()
                raise

        self._each(
            f"measuring all {len(subject.replicas)} devices at once, {which}",
            measure,
            subject.replicas,
        )
        parts = tuple(
            series.taken(common.counted[number]) for number, series in subject.series.items()
        )
        return AllAtOnce(overlap_s=common.overlap_s, parts=parts)

    def _each(self, doing: str, work: Work[T], those: Sequence[OwnReplica]) -> tuple[T, ...]:
        """What `work` gives of these devices, at the same time. Those that fail drop out, which
        ends the window.

        Raises an error that is no device's fault.
        """

        def attempt(number: int, worker: Worker) -> T:
            with lost_gpus_told(self.party.groups[number]):
                return work(self.replicas[number], worker)

        self.watch(Doing(doing))
        answers = self.party.each(attempt, [one.number for one in those])
        for number, error in sorted(self.party.failures.items()):
            if isinstance(error, BadInput | TimeLimitPassed):
                raise error
            one = self.replicas[number]
            one.error = error.fault or error if isinstance(error, OutOfMemory) else error
            self.watch(Doing(f"{one.device.label} dropped out: {error.message}"))
            if isinstance(error, OutOfMemory) and not self.alone[number].windows:
                # Its memory will not hold its batch the next time either.
                self.journal.helps = False
        if self.party.failures:
            self.at_once = self._together(AT_ONCE, self.going)
            raise _DroppedOut
        return tuple(answers.values())

    @property
    def failed(self) -> GpubalanceError | None:
        """One error that names all failed devices, None if none failed: partial unless all devices
        failed alike.
        """
        failed = [(one.device, one.error) for one in self.replicas if one.error]
        if not failed:
            return None
        kinds = {type(error) for _, error in failed}
        kind = PartialResult if self.going or len(kinds) > 1 else kinds.pop()
        return one_error(NothingFits if kind is OutOfMemory else kind, failed)

    def result(self) -> Independent | None:
        """The result of what was measured so far; None before the first timing."""
        request, going, at_once = self.request, self.going, self.at_once
        every = [series for subject in (*self.alone, at_once) for series in subject.series.values()]
        facts = [one.facts for one in self.replicas if one.facts]
        began = [series.began_s for series in every if series.windows]
        if not began or not facts:
            return None
        together = going if at_once.windows else []
        rates = [
            (one.throughput.median, one.step_times_s)
            for one in at_once.series.values()
            if one.windows
        ]
        total = (
            Throughput(median=sum(rate for rate, _ in rates), ci95=interval_of_sum(rates))
            if rates
            else None
        )
        is_one = len(facts) == len(self.replicas) and len({one.model for one in facts}) == 1
        model = facts[0].model if is_one else None
        solo = [self.alone[one.number].series[one.number].throughput.median for one in together]
        devices = [one.device for one in together]
        run = best_joint_run(devices, model, request.settings) if devices and model else None
        measured = [
            one for subject in self.subjects() for one in subject.series.values() if one.windows
        ]
        figures = of_figures(request.settings.model, self.slowed, measured)
        return Independent(
            created=now(),
            settings=request.settings,
            environment=environment(request.driver),
            model=model,
            devices=request.devices,
            replicas=tuple(self._own_model(one, min(began)) for one in self.replicas),
            throughput=total,
            solo_sum=sum(solo) if solo else None,
            overlap_s=sum(one.overlap_s for one in at_once.windows),
            joint=HeldAgainst(**run.model_dump(include={*HeldAgainst.model_fields}))
            if run
            else None,
            complete=self.complete,
            warnings=(*resumed(self.journal.reused[AllAtOnce]), *figures, *self.noted),
        )

    def _own_model(self, one: OwnReplica, origin_s: float) -> OwnModel:
        alone, at_once = (
            self.alone[one.number].series[one.number],
            self.at_once.series.get(one.number),
        )
        kept = None
        if at_once and at_once.windows and alone.windows:
            value = at_once.throughput.median / alone.throughput.median
            kept = ratio(value, at_once.step_times_s, alone.step_times_s)
        peaks = [
            peak
            for series in (alone, at_once)
            if series
            for peak in series.peaks
            if peak is not None
        ]
        return OwnModel(
            device=one.number,
            model=one.model,
            batch=one.batch,
            contention=kept and 1 - kept.value,
            contention_ci95=kept and kept.ci95 and (1 - kept.ci95[1], 1 - kept.ci95[0]),
            memory_peak_bytes=max(peaks, default=None),
            failure=Failure.of(one.error) if one.error else None,
            **self._figures(at_once, origin_s),
            **{f"solo_{name}": figure for name, figure in self._figures(alone, origin_s).items()},
        )

    def _figures(self, series: Series | None, origin_s: float) -> dict[str, Any]:
        """What a device gave alone or at once, by the field of its record; None is unknown."""
        known = series if series and series.windows else None
        fed = self.request.settings.data is not None or self.request.settings.input == "host"
        return {
            "throughput": known and known.throughput.median,
            "step_time_s": known and known.step_time(origin_s),
            "input_wait_s": known.input_wait_s if known and fed else None,
            "telemetry": series and series.sensors.telemetry(origin_s)[0],
        }
