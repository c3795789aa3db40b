"""How long a command still takes, as its phases tell."""

from __future__ import annotations

import time

from gpubalance.jobs import events
from gpubalance.numbers.units import format_duration


class Remaining:
    """The current phase, and the expected end of all of them."""

    def __init__(self) -> None:
        self._phase = events.PhaseBegun("", 1, 0)
        self._began_s = self._until_s = time.monotonic()
        self._later_s = 0.0  # for the phases after this one

    def take(self, event: events.Event) -> None:
        """Notes a new phase, or a better estimate; any other event says nothing."""
        now_s = time.monotonic()
        if isinstance(event, events.PhaseBegun):
            if not self._phase.name:
                self._began_s = now_s
            self._phase, self._until_s = event, now_s + event.left_s
            self._later_s = event.left_s - event.seconds
        elif isinstance(event, events.TimeLeft):
            self._until_s, self._later_s = now_s + event.seconds, event.later_s

    @property
    def line(self) -> str:
        """The line for the beginning of a phase, for where lines stay: `phase 2 of 4, proof: about
        19 s; about …`.
        """
        one, where = (
            self._phase,
            f"phase {self._phase.number} of {self._phase.of}, " if self._phase.of > 1 else "",
        )
        if not one.left_s:  # of a command that goes on
            return f"{where}{one.name}"
        if not where:
            return f"{one.name}: about {format_duration(self.whole_s)}"
        rest = f"{format_duration(self.whole_s)} in all" if one.number == 1 else self._of_whole
        return f"{where}{one.name}: about {format_duration(one.seconds)}; about {rest}"

    @property
    def short(self) -> str:
        """The text while it works: `phase 2 of 4, about 3 min of 6 left`; empty before the first
        phase.

        When a phase takes longer than expected nobody knows its end, so no time is told.
        """
        where = [f"phase {self._phase.number} of {self._phase.of}"] if self._phase.of > 1 else []
        if not self._phase.left_s:  # of a command that goes on
            return ", ".join(where)
        is_overdue = self._until_s - time.monotonic() <= self._later_s
        return ", ".join(
            [*where, "longer than expected" if is_overdue else f"about {self._of_whole}"]
        )

    @property
    def whole_s(self) -> float:
        """About how long all of it takes; 0 before the first phase."""
        return time.monotonic() - self._began_s + self._left_s if self._phase.name else 0.0

    @property
    def _left_s(self) -> float:
        """The seconds that are left, at least those of the later phases."""
        return max(self._until_s - time.monotonic(), self._later_s)

    @property
    def _of_whole(self) -> str:
        left, whole = format_duration(self._left_s), format_duration(self.whole_s)
        number, unit = whole.split()
        return f"{left} of {number if left.endswith(f' {unit}') else whole} left"
