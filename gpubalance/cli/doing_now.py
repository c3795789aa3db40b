"""What a command is doing now, in a phrase."""

from __future__ import annotations

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
