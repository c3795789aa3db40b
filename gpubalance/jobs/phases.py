"""How far a command is in its phases, how long the rest takes, and what `--dry-run` says of it."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from pydantic import TypeAdapter

from gpubalance.jobs.events import Doing, Event, PhaseBegun, TimeLeft, Watch
from gpubalance.jobs.journal import content_key
from gpubalance.jobs.measure.input_pipeline import USUAL_PIPELINE_S
from gpubalance.jobs.plan.estimates import DeviceEstimates
from gpubalance.jobs.plan.problem import best_split, check_asked
from gpubalance.jobs.probe.devices import phase_names, queues, stand_ins
from gpubalance.jobs.saved import kept_probe
from gpubalance.numbers.units import NO_TIME, DurationRange
from gpubalance.results.estimate import Estimate, PhaseEstimate
from gpubalance.settings.record import Record, Seconds
from gpubalance.settings.requests import (
    BalanceRequest,
    IndependentRequest,
    LayersRequest,
    MeasureRequest,
    ProbeRequest,
    QueueRequest,
    RunRequest,
)
from gpubalance.system.state import state_folder, write_whole

# What is usual, for small models on a machine with two cores.
_START_S = 10.0  # until the first window: loads TensorFlow, builds the model, warms up
_PROBE_S = 12.0  # a device
# On a GPU. Fresh workers took 8 to 18 s each on an H200, and a search for the limit needs several.
_GPU_START_S = 20.0
_GPU_PROBE_S = 120.0  # a device
_PROBE_SIZES = 10  # points of a device's curve
_BLOCKS_S = 12.0  # a device, to measure the model's blocks
_OWN_CODE_S = 3.0  # see `_own_s`
# In place of `_START_S` for a balance of simulated devices: while it probes the last one, the
# worker of the rounds loads TensorFlow.
_ROUNDS_START_S = 4.0
_ROUND_S = 3.0
_WINDOW_S = 5.0
# If steps are long, their number decides: in a warm-up, and in a window or round.
_WARM_UP_STEPS = 10
_WINDOW_STEPS = 8
_USUAL_ROUNDS = 2
_KEPT_DURATIONS = 500
_DURATIONS = TypeAdapter(dict[str, Seconds])  # by the phases' keys
# These fields change nothing about how long a phase takes.
_NOT_IN_KEY: dict[str, bool | dict[str, bool]] = {
    "tracing": True,
    "fresh": True,
    "force": True,
    "deadline_s": True,
    "time_limit_s": True,
    "least_samples": True,
    "measuring": {"deadline_s": True, "time_limit_s": True},
}


def phases_of(request: MeasureRequest, step_s: float = 0.0) -> list[PhaseEstimate]:
    """The phases of a command. Before them come those of the probe that a balance or cut may need.

    `step_s` is about how long a step takes, 0 if that is not known yet.
    """
    phases: list[PhaseEstimate] = []
    balance = _balance_in(request)
    if balance is not None:
        phases += phases_of(balance.probe, step_s)
    as_json = request.model_dump_json(exclude=_NOT_IN_KEY)
    last_s = _last_durations()
    for name, usual_s in _usual_s(request, step_s).items():
        key = content_key(name, as_json)
        guessed = key not in last_s
        phase = PhaseEstimate(
            name=name,
            seconds=max(1, round(last_s.get(key, usual_s))),
            guessed=guessed,
            key=key,
            more_s=_more_s(request, name, step_s) if guessed else 0.0,
        )
        phases.append(phase)
    return phases


def _balance_in(request: MeasureRequest) -> BalanceRequest | None:
    """The request itself, or the balance that a cut is compared with; None for other requests."""
    if isinstance(request, LayersRequest):
        return request.uncut
    return request if isinstance(request, BalanceRequest) else None


def keep_durations(took_s: dict[str, float]) -> None:
    """Keeps how long the latest phases took, by their keys, for the next time."""
    others = _last_durations()
    for key in took_s:
        others.pop(key, None)  # a key that comes again is among the latest
    durations = [*others.items(), *took_s.items()]
    with suppress(OSError):
        write_whole(
            _path(), _DURATIONS.dump_json(dict(durations[-_KEPT_DURATIONS:]), indent=1)
        )


def _usual_s(request: MeasureRequest, step_s: float) -> dict[str, float]:
    """The usual seconds of a command's phases, by name, but for the probe of a balance or cut."""
    if isinstance(request, ProbeRequest):
        return _usual_of_probe_s(request)
    devices = len(request.devices)
    is_simulated = request.devices[0].simulated
    warm_up_s = _WARM_UP_STEPS * step_s + _own_s(request)
    start_s = warm_up_s + (_START_S if is_simulated else _GPU_START_S)
    window_s, cycle_s = _windows_s(request, step_s)
    windows_s = request.measuring.windows * cycle_s
    pipeline_s = USUAL_PIPELINE_S if request.settings.data else 0.0
    match request:
        case BalanceRequest():
            start_s = warm_up_s + (_ROUNDS_START_S if is_simulated else _GPU_START_S)
            round_s = request.round_s or max(_ROUND_S, _WINDOW_STEPS * step_s)
            rounds_s = start_s + _USUAL_ROUNDS * round_s
            return {"rounds": rounds_s, "proof": windows_s + pipeline_s}
        case LayersRequest():
            rounds_s = start_s + _USUAL_ROUNDS * (request.round_s + window_s)
            return {
                "blocks": devices * _BLOCKS_S,
                "rounds": rounds_s,
                "proof": windows_s,
            }
        case IndependentRequest():
            return {"independent": devices * start_s + windows_s}
        case RunRequest():
            return {"run": start_s + pipeline_s + windows_s}


def _windows_s(
    request: BalanceRequest | LayersRequest | IndependentRequest | RunRequest,
    step_s: float,
) -> tuple[float, float]:
    """About the seconds of a window, and of a cycle: one window of each interleaved workload."""
    measuring = request.measuring
    window_s = measuring.duration_s or max(_WINDOW_S, _WINDOW_STEPS * step_s)
    devices = len(request.devices)
    if isinstance(request, LayersRequest):
        return window_s, window_s
    if isinstance(request, IndependentRequest):  # each device alone, and all at once
        return window_s, (devices + 1) * window_s
    workloads = 2 if measuring.baseline == "even" and devices > 1 else 1
    if isinstance(request, RunRequest) and request.settings.data is not None:
        workloads += 1  # the split on held batches too
    return window_s, workloads * window_s


def _more_s(request: MeasureRequest, phase: str, step_s: float) -> float:
    """The seconds of windows that may follow the planned ones."""
    has_windows = phase in ("run", "independent", "proof")
    if isinstance(request, ProbeRequest) or not has_windows:
        return 0.0
    _, cycle_s = _windows_s(request, step_s)
    measuring = request.measuring
    return (measuring.most_windows(cycle_s) - measuring.windows) * cycle_s


def _usual_of_probe_s(request: ProbeRequest) -> dict[str, float]:
    names = phase_names(request)
    probe_s = _PROBE_S if request.devices[0].simulated else _GPU_PROBE_S
    probe_s += _own_s(request)
    device_s = probe_s + _PROBE_SIZES * (request.duration_s or 0.0)
    if len(set(names)) > 1:  # a phase for each device
        return dict.fromkeys(names, device_s)
    probed = set(stand_ins(request))
    most_in_a_queue = max(len(probed.intersection(queue)) for queue in queues(request))
    return dict.fromkeys(names, most_in_a_queue * device_s)


def _own_s(request: MeasureRequest) -> float:
    """Extra seconds for a user's own model: the parity check tries its step in parts."""
    return _OWN_CODE_S if request.settings.model_is_code else 0.0


def _path() -> Path:
    return state_folder("durations") / "phases.json"


def _last_durations() -> dict[str, float]:
    """The seconds that phases took last on this machine, by their keys."""
    with suppress(OSError, ValueError):  # none yet, or damaged
        return _DURATIONS.validate_json(_path().read_bytes())
    return {}


# A command reports that it takes longer if that is over so many times what was announced at most,
# and over so many seconds more.
_TOO_LONG = 2.0
_TOO_LONG_S = 30.0
# An estimate by steps is announced if it is above the announced range, and over so many times its
# lower end.
_WORTH_ANNOUNCING = 1.3
# After so many times what it was expected to take, a phase is overdue: its time and that of the
# later ones are corrected.
_OVERDUE = 2.0
_OVERDUE_REST = 0.5  # of its time so far: what it is then taken to need still


class Phases:
    """A watch that completes what a job reports of its phases: their numbers and times.

    The first phase that takes over twice as long as expected is taken to need half as long again,
    and all later ones to take as many times longer. Once it knows that the command takes more than
    twice as long as was announced at most, and over 30 s longer, it reports that. The report has a
    number only if the job has estimated any phase since the correction. No report lowers the time
    of the whole command. Of a `resumed` command nobody knows how much is left: it announces no
    times, and keeps none.
    """

    def __init__(
        self,
        request: MeasureRequest,
        watch: Watch,
        clock: Callable[[], float] = time.monotonic,
        *,
        resumed: bool = False,
    ) -> None:
        self._request = request
        self._phases = phases_of(request)
        self._watch = watch
        self._clock = clock
        self._is_silent = resumed
        self._took_s = defaultdict[str, float](float)  # by the phases' keys
        self._number: int | None = None
        self._begun: set[int] = set()
        self._began_s = 0.0
        self._phase_began_s = 0.0
        self._left = NO_TIME  # of the command, at `_noted_s`
        self._noted_s = 0.0
        self._announced = NO_TIME  # of the whole command
        self._job_has_reported_left = False  # what is left of the present phase
        self._has_seen_first_steps = False  # `_announce` acts on them once
        self._job_has_estimated = False  # any phase, since a correction
        self._longest_reported_s = 0.0  # of the whole command, by `_report_if_longer`
        self._is_corrected = False
        self._has_reported_longer = False
        measuring = request if isinstance(request, ProbeRequest) else request.measuring
        limit_s = measuring.time_limit_s
        self._limit_s = math.inf if limit_s is None else limit_s

    def __call__(self, event: Event) -> None:
        """Passes on an event, a phase with its number and times, but not the present one again."""
        if isinstance(event, PhaseBegun):
            number = [phase.name for phase in self._phases].index(event.name)
            if number == self._number:
                return
            event = self._begin(number, event)
        elif isinstance(event, Doing) and event.resumes:
            self._is_silent = True
        elif isinstance(event, TimeLeft):
            self._estimate_present(event)
            self._estimate_by_steps(event)
            # A job's TimeLeft is of its phase. The one passed on is of the whole command.
            event = self._with_later(event.duration)
            self._note_left(event.duration)
            self._job_has_estimated = True
        if not self._is_silent:
            self._correct()
            self._report_if_longer()
        self._watch(event)
        if not self._is_silent and self._announced.least_s > self._limit_s:
            self._limit_s = math.inf
            text = "that is longer than --time-limit, which will end the command early"
            self._watch(Doing(text, stays=True))

    def keep(self) -> None:
        """Keeps how long the phases took. cli/job.py calls it after a job without an error."""
        self._end()
        if not self._is_silent:
            keep_durations(self._took_s)

    def _begin(self, number: int, by_job: PhaseBegun) -> PhaseBegun:
        if self._number is None:  # those before the first one are not needed
            self._phases = self._phases[number:]
            number = 0
            self._began_s = self._clock()
            self._announced = _total(self._phases)
        self._end()
        self._number = number
        self._job_has_reported_left = False
        self._begun.add(number)
        self._phase_began_s = self._clock()
        phase = self._phases[number]
        if by_job.duration is not None:  # it has measured
            phase = phase.with_duration(by_job.duration)
            self._phases[number] = phase
        self._note_left(phase.duration + self._later)
        begun = PhaseBegun(phase.name, number + 1, len(self._phases))
        if self._is_silent:
            return begun
        return begun._replace(duration=phase.duration, later=self._later)

    def _end(self) -> None:
        """Notes how long the present phase took, in all if it came more than once.

        If it probed a device, later guessed phases that do so get its time, unless the job never
        reported what was left of it: then its device failed at once.
        """
        if self._number is None:
            return
        took_s = self._clock() - self._phase_began_s
        ended = self._phases[self._number]
        self._took_s[ended.key] += took_s
        probing = self._probe_phase_names
        if ended.name not in probing or not self._job_has_reported_left:
            return
        for number in range(self._next, len(self._phases)):
            phase = self._phases[number]
            if phase.guessed and phase.name in probing:
                self._phases[number] = phase.with_duration(DurationRange.about(took_s))

    @property
    def _probe_phase_names(self) -> set[str]:
        """The names of the phases that probe a device each: they take over each other's time."""
        balance = _balance_in(self._request)
        probe = self._request if balance is None else balance.probe
        return set(phase_names(probe)) if isinstance(probe, ProbeRequest) else set()

    @property
    def _next(self) -> int:
        """The number of the phase after the present one."""
        return (self._number or 0) + 1

    @property
    def _later(self) -> DurationRange:
        """How long the phases take that come after the present one and have not begun yet.

        One that has counts as over: after a proof a further round mostly confirms it.
        """
        later = range(self._next, len(self._phases))
        return _total(
            self._phases[number] for number in later if number not in self._begun
        )

    def _with_later(self, left: DurationRange) -> TimeLeft:
        """What is left of the command, by what is `left` of the present phase."""
        return TimeLeft(left + self._later, self._later)

    def _note_left(self, left: DurationRange) -> None:
        """Notes how long the command still takes."""
        self._left = left
        self._noted_s = self._clock()

    def _estimate_present(self, left: TimeLeft) -> None:
        """Estimates the present phase by what the job says is left of it."""
        if self._number is None:
            return
        self._job_has_reported_left = True
        took = DurationRange.about(self._clock() - self._phase_began_s)
        phase = self._phases[self._number]
        self._phases[self._number] = phase.with_duration(took + left.duration)

    def _estimate_by_steps(self, left: TimeLeft) -> None:
        """Estimates later phases by what a step takes and what the present one will have taken.

        A phase that probes another device is taken to need as long as the present one. If it was
        measured by an earlier command, its time is only raised to that.
        """
        if not left.step_s or self._number is None:
            return
        whole_s = self._clock() - self._phase_began_s + left.duration.least_s
        probing = self._probe_phase_names
        by_steps_of_key = {}
        for phase in phases_of(self._request, left.step_s):
            by_steps_of_key[phase.key] = phase
        for number in range(self._next, len(self._phases)):
            phase = self._phases[number]
            by_steps = by_steps_of_key[phase.key]
            duration = by_steps.duration
            if phase.name in probing:
                as_long_s = whole_s
                if not by_steps.guessed:
                    as_long_s = max(phase.seconds, whole_s)
                duration = DurationRange.about(as_long_s)
            self._phases[number] = phase.with_duration(duration)
        if left.later != NO_TIME:  # by the job, whose next phase is the last one
            self._phases[-1] = self._phases[-1].with_duration(left.later)
        took = DurationRange.about(self._clock() - self._began_s)
        self._announce(took + left.duration + self._later)

    def _announce(self, whole: DurationRange) -> None:
        """Reports once how long the command takes by its first steps, if that is clearly longer."""
        if self._has_seen_first_steps or self._is_silent:
            return
        self._has_seen_first_steps = True
        expected_s = max(self._announced.most_s, self._longest_reported_s)
        if whole.least_s > max(_WORTH_ANNOUNCING * self._announced.least_s, expected_s):
            self._announced = whole
            self._watch(Doing(f"by its first steps: about {whole} in all", stays=True))

    def _correct(self) -> None:
        """Corrects, once, what is left if the present phase is overdue."""
        if self._number is None or self._is_corrected:
            return
        took_s = self._clock() - self._phase_began_s
        phase = self._phases[self._number]
        expected_s = max(1.0, phase.duration.most_s)
        if took_s <= _OVERDUE * expected_s:
            return
        self._is_corrected = True
        times = (1 + _OVERDUE_REST) * took_s / expected_s
        for number in range(self._next, len(self._phases)):
            phase = self._phases[number]
            self._phases[number] = phase.with_duration(phase.duration * times)
        self._job_has_estimated = False
        left = self._with_later(DurationRange.about(_OVERDUE_REST * took_s))
        self._note_left(left.duration)
        self._watch(left)

    def _report_if_longer(self) -> None:
        """Reports once that the command takes too long by what is left of it."""
        if self._number is None or self._has_reported_longer:
            return
        left = self._left.after(self._clock() - self._noted_s)
        took_s = self._clock() - self._began_s
        announced = self._announced
        too_long_s = max(_TOO_LONG * announced.most_s, announced.most_s + _TOO_LONG_S)
        if took_s + left.least_s <= too_long_s:
            return
        self._has_reported_longer = True
        text = f"taking longer than the estimated {announced}"
        if self._job_has_estimated:
            self._longest_reported_s = took_s + left.most_s
            more = f": about {left} more" if left.least_s else ""
            text = f"taking over twice the estimated {announced}{more}"
        self._watch(Doing(text, stays=True))


def _total(phases: Iterable[PhaseEstimate]) -> DurationRange:
    """How long phases take, one after the other."""
    return sum((phase.duration for phase in phases), NO_TIME)


def estimate(request: MeasureRequest) -> Estimate:
    """What the command would do, and about how long it would take; no device is used.

    Raises UsageError and NothingFits for what is not possible, by what is known before anything is
    measured.
    """
    if isinstance(request, ProbeRequest | BalanceRequest):
        check_asked(request)
    phases = phases_of(request)
    probe = None
    balance = _balance_in(request)
    if balance is not None:
        probe = kept_probe(balance)
        if probe is not None:
            probe_phases = phase_names(balance.probe)
            phases = [phase for phase in phases if phase.name not in probe_phases]
    if isinstance(request, BalanceRequest) and probe is not None:
        best_split(DeviceEstimates(probe, request.devices, request.plan).problem)
    return Estimate(
        kind=_kind_of(request),
        request=request,
        probed=probe and probe.created,
        phases=tuple(phases),
        seconds=sum(phase.seconds for phase in phases),
    )


def estimate_of_queue(request: QueueRequest, resumed: tuple[int, ...]) -> Estimate:
    """The commands that a queue would run, without those with the numbers `resumed`."""
    return Estimate(
        kind=_kind_of(request),
        request=request,
        probed=None,
        phases=(),
        seconds=None,
        resumed=resumed,
    )


def _kind_of(request: Record) -> str:
    """`balance-estimate`."""
    return f"{type(request).__name__.removesuffix('Request').lower()}-estimate"
