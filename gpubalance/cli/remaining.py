"""What a command is doing now, in a phrase, and how long it still takes, by its phases."""

from __future__ import annotations

import time

from gpubalance.jobs import events
from gpubalance.numbers.units import format_duration


class DoingNow:
    """What a command is doing now, as `text`; "working" before anything was said.

    What stays after the command is a note, and nothing that is done.
    """

    def __init__(self) -> None:
        self.text = "working"
        self._then: str | None = None  # while workers start: what they do then

    def take(self, event: events.Event) -> None:
        """Notes what is done from now on; an event that says nothing of it changes nothing."""
        match event:
            case events.Doing(text, stays=False):
                self.text = text
                self._then = None
            case events.Starting(text):
                self._then = self._then or self.text
                self.text = text
            case events.TimingDone() if self._then is not None:
                # Their first steps may take minutes.
                self.text = self._then
                self._then = None
            case events.QueueSeen():
                self.text = _queue_text(event)


def _queue_text(event: events.QueueSeen) -> str:
    counts = (
        f"{len(event.running)} running, {event.waiting} waiting, {event.ended} ended"
    )
    left = f"; about {format_duration(event.left_s)} left" if event.left_s else ""
    return counts + left


class Remaining:
    """The current phase, and the expected end of all of them."""

    def __init__(self) -> None:
        self._phase = events.PhaseBegun("", 1, 0)
        self._began_s = time.monotonic()
        self._until_s = self._began_s
        self._later_s = 0.0  # for the phases after this one

    def take(self, event: events.Event) -> None:
        """Notes a new phase, or a better estimate; any other event says nothing."""
        now_s = time.monotonic()
        if isinstance(event, events.PhaseBegun):
            if not self._phase.name:
                self._began_s = now_s
            self._phase = event
            self._until_s = now_s + event.left_s
            self._later_s = event.left_s - event.seconds
        elif isinstance(event, events.TimeLeft):
            self._until_s = now_s + event.seconds
            self._later_s = event.later_s

    @property
    def line(self) -> str:
        """The line for the beginning of a phase, for where lines stay.

        `phase 2 of 4, proof: about 19 s; about …`.
        """
        phase = self._phase
        place = self._place
        name = phase.name
        if place:
            name = f"{place}, {name}"
        if not phase.left_s:  # of a command whose end nobody knows
            return name
        if not place:
            return f"{name}: about {format_duration(self.whole_s)}"
        rest = self._of_whole
        if phase.number == 1:
            rest = f"{format_duration(self.whole_s)} in all"
        return f"{name}: about {format_duration(phase.seconds)}; about {rest}"

    @property
    def short(self) -> str:
        """The text while it works: `phase 2 of 4, about 3 min of 6 left`.

        Empty before the first phase. When a phase takes longer than expected nobody knows its end,
        so no time is given.
        """
        place = self._place
        if not self._phase.left_s:  # of a command whose end nobody knows
            return place
        left = f"about {self._of_whole}"
        if self._until_s - time.monotonic() <= self._later_s:
            left = "longer than expected"
        if place:
            return f"{place}, {left}"
        return left

    @property
    def _place(self) -> str:
        """`phase 2 of 4`; empty if there is only one."""
        if self._phase.of <= 1:
            return ""
        return f"phase {self._phase.number} of {self._phase.of}"

    @property
    def whole_s(self) -> float:
        """About how long all of it takes; 0 before the first phase."""
        if not self._phase.name:
            return 0.0
        return time.monotonic() - self._began_s + self._left_s

    @property
    def _left_s(self) -> float:
        """The seconds that are left, at least those of the later phases."""
        return max(self._until_s - time.monotonic(), self._later_s)

    @property
    def _of_whole(self) -> str:
        left = format_duration(self._left_s)
        whole = format_duration(self.whole_s)
        number, unit = whole.split()
        if left.endswith(f" {unit}"):
            whole = number
        return f"{left} of {whole} left"
