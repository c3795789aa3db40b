"""The phases of a command, and about how long each takes: as long as last time on this machine,
else as usual.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pydantic import TypeAdapter

from gpubalance.devices.alike import first_alike
from gpubalance.devices.hosts import are_reached
from gpubalance.jobs.events import Doing, Event, PhaseBegun, TimeLeft, Watch
from gpubalance.jobs.keep.journal import content_key
from gpubalance.jobs.keep.saved import kept_probe
from gpubalance.jobs.plan.estimates import DeviceEstimates
from gpubalance.jobs.plan.problem import best_split, check_asked
from gpubalance.numbers.units import format_duration
from gpubalance.results.estimate import Estimate, PhaseEstimate
from gpubalance.settings.record import Seconds
from gpubalance.settings.requests import (
    BalanceRequest,
    IndependentRequest,
    LayersRequest,
    MeasureRequest,
    ProbeRequest,
    RunRequest,
)
from gpubalance.system.state import state_folder, write_whole

Clock = Callable[[], float]

# What is usual, for small models on a machine with two cores.
_START_S = 10.0  # until the first window: loads TensorFlow, builds the model, warms up
_PROBE_S, _SIZES = 15.0, 10
_BLOCKS_S = 12.0
_WINDOW_S = 5.0
_ROUNDS = 2
_LONGER, _LONGER_S = 2.0, 30.0  # than announced, times and seconds: this is told
# Times what a phase was expected to take: then its time and that of the later ones are corrected,
# and it is taken to need half as long again.
_OVERDUE, _AGAIN = 2.0, 0.5
_KEPT = 500
_TOOK = TypeAdapter(dict[str, Seconds])  # by the phases' keys
# These fields change nothing about how long a phase takes.
_BESIDE: dict[str, bool | dict[str, bool]] = {
    **dict.fromkeys(
        ("tracing", "fresh", "force", "deadline_s", "time_limit_s", "for_split", "least_samples"),
        True,
    ),
    "measuring": {"deadline_s": True, "time_limit_s": True},
}


def estimate(request: ProbeRequest | BalanceRequest | LayersRequest) -> Estimate:
    """What the command would do, and about how long it would take; no device is used.

    Raises UsageError and NothingFits for what is not possible, by what is known before anything is
    measured.
    """
    uncut = request.uncut if isinstance(request, LayersRequest) else request
    probe = kept_probe(uncut) if isinstance(uncut, BalanceRequest) else None
    probing = phase_names(uncut.probe) if probe and isinstance(uncut, BalanceRequest) else []
    phases = tuple(phase for phase in phases_of(request) if phase.name not in probing)
    if not isinstance(request, LayersRequest):
        check_asked(request)
    if isinstance(request, BalanceRequest) and probe is not None:
        best_split(DeviceEstimates(probe, request.devices, request.plan).problem)
    return Estimate(
        kind=f"{type(request).__name__.removesuffix('Request').lower()}-estimate",
        request=request,
        probed=probe and probe.created,
        phases=phases,
        seconds=sum(phase.seconds for phase in phases),
    )


def stand_ins(request: ProbeRequest) -> list[int]:
    """For each device the number of the one that is probed for it: its own, or that of an equal one
    before it.
    """
    return [*range(len(request.devices))] if request.each else first_alike(request.devices)


def queues(request: ProbeRequest) -> list[list[int]]:
    """Queues of device numbers: devices in a queue are measured one after the other, the queues at
    the same time.

    One queue in all, or one for each device if that is asked for, or one for each host if each is
    its own machine. A device that is not probed follows the one that is probed for it.
    """
    found = defaultdict[object, list[int]](list)
    hosts = [device.host if are_reached() else None for device in request.devices]
    for number, key in enumerate(stand_ins(request) if request.parallel else hosts):
        found[key].append(number)
    return [*found.values()]


def phase_names(request: ProbeRequest) -> list[str]:
    """The phase of each device in a probe: its own or its stand-in's, or one for all if there are
    several queues.
    """
    if request.parallel or len(queues(request)) > 1:
        return [f"all {'devices' if request.parallel else 'hosts'} at once"] * len(request.devices)
    return [f"{request.devices[number].label} alone" for number in stand_ins(request)]


def phases_of(request: MeasureRequest) -> list[PhaseEstimate]:
    """The phases of a command, those of a probe that it may have to make first."""
    uncut = request.uncut if isinstance(request, LayersRequest) else request
    phases = phases_of(uncut.probe) if isinstance(uncut, BalanceRequest) else []
    plain, took_s = request.model_dump_json(exclude=_BESIDE), _took_last_time()
    for name, usual_s in _usual_s(request).items():
        key = content_key(name, plain)
        seconds = max(1, round(took_s.get(key, usual_s)))
        phases.append(PhaseEstimate(name=name, seconds=seconds, key=key))
    return phases


def _usual_s(request: MeasureRequest) -> dict[str, float]:
    """The seconds that the phases of a command usually take, without those of a probe."""
    devices = len(request.devices)
    if isinstance(request, ProbeRequest):
        names, probe_s = phase_names(request), _PROBE_S + _SIZES * (request.duration_s or 0.0)
        probed = set(stand_ins(request))
        longest = max(len(probed.intersection(queue)) for queue in queues(request))
        in_turn = longest if len({*names}) == 1 else 1
        return dict.fromkeys(names, in_turn * probe_s)
    measuring = request.measuring
    windows_s = measuring.windows * (measuring.duration_s or _WINDOW_S)
    splits = 2 if measuring.baseline == "even" and devices > 1 else 1
    match request:
        case BalanceRequest():
            rounds_s = _START_S + _ROUNDS * (request.round_s or _WINDOW_S)
            return {"rounds": rounds_s, "proof": splits * windows_s}
        case LayersRequest():
            rounds_s = _START_S + _ROUNDS * (request.round_s + _WINDOW_S)
            return {"blocks": devices * _BLOCKS_S, "rounds": rounds_s, "proof": windows_s}
        case IndependentRequest():
            return {"independent": devices * _START_S + (devices + 1) * windows_s}
        case RunRequest():
            return {"run": _START_S + (splits + (request.settings.data is not None)) * windows_s}


class Phases:
    """A watch that completes what a job tells of its phases: their numbers, and how long they and
    the rest take.

    The first phase that takes over twice as long as expected is taken to need half as long again,
    and all later ones to take as many times longer. It says so when it knows that the command takes
    more than twice as long as was announced. Of a `resumed` command nobody knows how much is left:
    it announces no times, and keeps none.
    """

    def __init__(
        self,
        request: MeasureRequest,
        watch: Watch,
        clock: Callable[[], float] = time.monotonic,
        *,
        resumed: bool = False,
    ) -> None:
        self._phases = phases_of(request)
        self._watch = watch
        self._clock = clock
        self._resumed = resumed
        self._took_s = defaultdict[str, float](float)  # by the phases' keys
        self._number: int | None = None
        self._began_s = self._phase_began_s = self._until_s = self._announced_s = 0.0
        self._is_told = self._is_corrected = resumed
        limit_s = (
            request.time_limit_s
            if isinstance(request, ProbeRequest)
            else request.measuring.time_limit_s
        )
        self._limit_s = math.inf if limit_s is None or resumed else limit_s

    def __call__(self, event: Event) -> None:
        """Passes on an event, a phase with its number and times."""
        if isinstance(event, PhaseBegun):
            number = [phase.name for phase in self._phases].index(event.name)
            if number == self._number:
                return
            event = self._begin(number)
        elif isinstance(event, TimeLeft):
            event = TimeLeft(event.seconds + self._later_s, self._later_s)
            self._until_s = self._clock() + event.seconds
        self._correct()
        self._tell_if_longer()
        self._watch(event)
        if self._announced_s > self._limit_s:
            self._limit_s = math.inf
            self._watch(
                Doing(
                    "that is longer than its time limit, which will end it before it is done",
                    stays=True,
                )
            )

    def keep(self) -> None:
        """Ends the command, and keeps how long its phases took for the next time."""
        self._end()
        kept = {**_took_last_time(), **self._took_s}
        if not self._resumed:
            with suppress(OSError):
                write_whole(_path(), _TOOK.dump_json(dict(list(kept.items())[-_KEPT:]), indent=1))

    def _begin(self, number: int) -> PhaseBegun:
        if self._number is None:  # those before the first one are not needed
            self._phases, number = self._phases[number:], 0
            self._began_s = self._clock()
            self._announced_s = sum(phase.seconds for phase in self._phases)
        self._end()
        self._number, self._phase_began_s = number, self._clock()
        seconds, later_s = self._phases[number].seconds, self._later_s
        self._until_s = self._phase_began_s + seconds + later_s
        times = (0.0, 0.0) if self._resumed else (seconds, seconds + later_s)
        return PhaseBegun(self._phases[number].name, number + 1, len(self._phases), *times)

    def _end(self) -> None:
        """Notes how long the present phase took, in all if it came more than once."""
        if self._number is not None:
            self._took_s[self._phases[self._number].key] += self._clock() - self._phase_began_s

    @property
    def _later_s(self) -> float:
        """The time for the phases after the present one."""
        return sum(phase.seconds for phase in self._phases[(self._number or 0) + 1 :])

    def _correct(self) -> None:
        """Corrects, once, what is left if the present phase is overdue."""
        if self._number is None or self._is_corrected:
            return
        took_s, expected_s = self._clock() - self._phase_began_s, self._phases[self._number].seconds
        if took_s <= _OVERDUE * expected_s:
            return
        self._is_corrected = True
        self._lengthen((1 + _AGAIN) * took_s / expected_s)
        left_s = _AGAIN * took_s + self._later_s
        self._until_s = self._clock() + left_s
        self._watch(TimeLeft(left_s, self._later_s))

    def _lengthen(self, times: float) -> None:
        """Expects the phases after the present one to take so many times longer."""
        at = (self._number or 0) + 1
        later = [
            phase.model_copy(update={"seconds": times * phase.seconds})
            for phase in self._phases[at:]
        ]
        self._phases = [*self._phases[:at], *later]

    def _tell_if_longer(self) -> None:
        left_s = max(0.0, self._until_s - self._clock())
        whole_s = self._clock() + left_s - self._began_s
        longest_s = max(_LONGER * self._announced_s, self._announced_s + _LONGER_S)
        if not self._is_told and self._number is not None and whole_s > longest_s:
            self._is_told = True
            rest = f": about {format_duration(left_s)} more" if left_s else ""
            announced = format_duration(self._announced_s)
            text = f"taking over twice the estimated {announced}{rest}"
            self._watch(Doing(text, stays=True))


def _path() -> Path:
    return state_folder("durations") / "phases.json"


def _took_last_time() -> dict[str, float]:
    """The seconds that phases took on this machine, by their keys."""
    with suppress(OSError, ValueError):  # none yet, or damaged
        return _TOOK.validate_json(_path().read_bytes())
    return {}
