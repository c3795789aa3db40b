"""What a command is doing now, in a phrase."""

from __future__ import annotations

from gpubalance.jobs import events
from gpubalance.numbers.units import format_duration


class DoingNow:
    """What the last event said that is done; `text` is "working" before the first one."""

    def __init__(self) -> None:
        self.text = "working"
        self._starting = False

    def take(self, event: events.Event) -> None:
        """Notes what is done from now on; an event that says nothing of it changes nothing."""
        match event:
            case events.Doing(text):
                self.text = text
                self._starting = False
            case events.Starting(text):
                self.text = text
                self._starting = True
            case events.TimingDone(batches=batches) if self._starting:
                # A first round of a slow device goes on for minutes.
                self.text = f"training with {'/'.join(map(str, batches))}"
                self._starting = False
            case events.QueueSeen():
                self.text = _queue_text(event)


def _queue_text(event: events.QueueSeen) -> str:
    counts = (
        f"{len(event.running)} running, {event.waiting} waiting, {event.ended} ended"
    )
    left = f"; about {format_duration(event.left_s)} left" if event.left_s else ""
    return counts + left
