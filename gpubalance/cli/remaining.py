"""How much time is left, from what a job has reported so far."""

from __future__ import annotations

import time

from gpubalance.jobs.events import PhaseBegun, TimeLeft
from gpubalance.render.remaining import left_text, phase_text


class Remaining:
    """The current phase, and the expected end of all of them."""

    def __init__(self) -> None:
        self._phase: PhaseBegun | None = None
        self._thought_s = 0.0
        self._began_s = self._until_s = time.monotonic()

    def take(self, event: PhaseBegun | TimeLeft) -> None:
        """Takes an event about time."""
        now_s = time.monotonic()
        if isinstance(event, TimeLeft):
            self._until_s = now_s + event.seconds
            return
        if self._phase is None:
            self._began_s, self._thought_s = now_s, event.left_s
        self._phase = event
        self._until_s = now_s + event.left_s

    @property
    def line(self) -> str:
        """The line for the beginning of a phase, for where lines stay; empty before the first phase."""
        one = self._phase
        return (
            phase_text(one.name, one.number, one.of, one.seconds, *self._times_s(one), self._thought_s) if one else ""
        )

    @property
    def short(self) -> str:
        """The text for a screen; empty before the first phase."""
        one = self._phase
        return left_text(one.number, one.of, *self._times_s(one), self._thought_s) if one else ""

    @property
    def whole_s(self) -> float:
        """About how long all of it takes; 0 before the first phase."""
        return self._times_s(self._phase)[1] if self._phase else 0.0

    def _times_s(self, phase: PhaseBegun) -> tuple[float, float]:
        """Seconds that are left, at least those of the later phases, and seconds for the whole."""
        now_s = time.monotonic()
        left_s = max(self._until_s - now_s, phase.left_s - phase.seconds)
        return left_s, now_s - self._began_s + left_s
