"""How far a command is in its phases, and about how long the rest of them will take."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable

from gpubalance.jobs.durations import keep_durations, phases_of
from gpubalance.jobs.events import Doing, Event, PhaseBegun, TimeLeft, Watch
from gpubalance.jobs.probe.devices import phase_names
from gpubalance.numbers.units import format_duration
from gpubalance.settings.requests import BalanceRequest, MeasureRequest, ProbeRequest

# A command that takes so many times, and so many seconds, longer than announced says so.
_LONGER = 2.0
_LONGER_S = 30.0
# An estimate by steps that is so many times as long as what was announced is announced anew.
_OTHER = 1.3
# After so many times what it was expected to take, a phase is overdue: its time and that of the
# later ones are corrected, and it is taken to need half as long again.
_OVERDUE = 2.0
_AGAIN = 0.5


class Phases:
    """A watch that completes what a job reports of its phases: their numbers and times.

    The first phase that takes over twice as long as expected is taken to need half as long again,
    and all later ones to take as many times longer. It says so when it knows that the command takes
    more than twice as long as was announced: with a number only if the job has estimated its phase,
    and none that is lower than one before. Of a `resumed` command nobody knows how much is left: it
    announces no times, and keeps none.
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
        self._resumed = resumed
        self._took_s = defaultdict[str, float](float)  # by the phases' keys
        self._number: int | None = None
        self._began_s = 0.0
        self._phase_began_s = 0.0
        self._until_s = 0.0
        self._announced_s = 0.0
        self._is_by_steps = False
        self._is_estimated = False  # by the job, which has measured
        self._expected_whole_s = (
            0.0  # the longest whole time that was told as longer than announced
        )
        self._is_corrected = resumed
        self._has_reported_longer = resumed
        measuring = request if isinstance(request, ProbeRequest) else request.measuring
        limit_s = None if resumed else measuring.time_limit_s
        self._limit_s = math.inf if limit_s is None else limit_s

    def __call__(self, event: Event) -> None:
        """Passes on an event, a phase with its number and times."""
        if isinstance(event, PhaseBegun):
            number = [phase.name for phase in self._phases].index(event.name)
            if number == self._number:
                return
            event = self._begin(number)
        elif isinstance(event, TimeLeft):
            self._estimate_by_steps(event)
            event = TimeLeft(event.seconds + self._later_s, self._later_s)
            self._until_s = self._clock() + event.seconds
            self._is_estimated = True
        self._correct()
        self._say_if_longer()
        self._watch(event)
        if self._announced_s > self._limit_s:
            self._limit_s = math.inf
            text = "that is longer than --time-limit, which will end the command early"
            self._watch(Doing(text, stays=True))

    def keep(self) -> None:
        """Ends the command, and keeps how long its phases took for the next time."""
        self._end()
        if not self._resumed:
            keep_durations(self._took_s)

    def _begin(self, number: int) -> PhaseBegun:
        if self._number is None:  # those before the first one are not needed
            self._phases = self._phases[number:]
            number = 0
            self._began_s = self._clock()
            self._announced_s = sum(phase.seconds for phase in self._phases)
        self._end()
        self._number = number
        self._phase_began_s = self._clock()
        phase = self._phases[number]
        left_s = phase.seconds + self._later_s
        self._until_s = self._phase_began_s + left_s
        begun = PhaseBegun(phase.name, number + 1, len(self._phases))
        if self._resumed:
            return begun
        return begun._replace(seconds=phase.seconds, left_s=left_s)

    def _end(self) -> None:
        """Notes how long the present phase took, in all if it came more than once."""
        if self._number is not None:
            self._took_s[self._phases[self._number].key] += (
                self._clock() - self._phase_began_s
            )

    @property
    def _next(self) -> int:
        """The number of the phase after the present one."""
        return (self._number or 0) + 1

    @property
    def _later_s(self) -> float:
        """The time for the phases after the present one."""
        return sum(phase.seconds for phase in self._phases[self._next :])

    def _estimate_by_steps(self, left: TimeLeft) -> None:
        """Estimates the phases by what a step takes and what the present one will have taken.

        So long takes each phase that probes another device.
        """
        if not left.step_s or self._number is None:
            return
        whole_s = self._clock() - self._phase_began_s + left.seconds
        probing = set()
        if isinstance(self._request, BalanceRequest):
            probing = set(phase_names(self._request.probe))
        usual = {phase.key: phase for phase in phases_of(self._request)}
        known = {phase.key: phase for phase in phases_of(self._request, left.step_s)}
        for number in range(self._number, len(self._phases)):
            phase = self._phases[number]
            seconds = max(usual[phase.key].seconds, known[phase.key].seconds)
            if phase.name in probing:
                seconds = max(usual[phase.key].seconds, whole_s)
            self._phases[number] = phase.model_copy(update={"seconds": seconds})
        self._announce(self._clock() - self._began_s + left.seconds + self._later_s)

    def _announce(self, whole_s: float) -> None:
        """Says once how long all takes by the first steps, if that is not what was said."""
        if self._is_by_steps or self._resumed:
            return
        self._is_by_steps = True
        if whole_s > max(_OTHER * self._announced_s, self._expected_whole_s):
            self._announced_s = whole_s
            duration = format_duration(whole_s)
            self._watch(
                Doing(f"by its first steps: about {duration} in all", stays=True)
            )

    def _correct(self) -> None:
        """Corrects, once, what is left if the present phase is overdue."""
        if self._number is None or self._is_corrected:
            return
        took_s = self._clock() - self._phase_began_s
        expected_s = self._phases[self._number].seconds
        if took_s <= _OVERDUE * expected_s:
            return
        self._is_corrected = True
        times = (1 + _AGAIN) * took_s / expected_s
        for number in range(self._next, len(self._phases)):
            phase = self._phases[number]
            longer = phase.model_copy(update={"seconds": times * phase.seconds})
            self._phases[number] = longer
        self._is_estimated = False
        left_s = _AGAIN * took_s + self._later_s
        self._until_s = self._clock() + left_s
        self._watch(TimeLeft(left_s, self._later_s))

    def _say_if_longer(self) -> None:
        if self._number is None or self._has_reported_longer:
            return
        left_s = max(0.0, self._until_s - self._clock())
        whole_s = self._clock() + left_s - self._began_s
        if whole_s <= max(_LONGER * self._announced_s, self._announced_s + _LONGER_S):
            return
        self._has_reported_longer = True
        announced = format_duration(self._announced_s)
        text = f"taking longer than the estimated {announced}"
        if self._is_estimated:
            self._expected_whole_s = whole_s
            more = f": about {format_duration(left_s)} more" if left_s else ""
            text = f"taking over twice the estimated {announced}{more}"
        self._watch(Doing(text, stays=True))
