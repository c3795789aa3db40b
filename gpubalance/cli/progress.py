"""What a stage tells, to stderr, a line an event."""

from __future__ import annotations

import sys

from gpubalance.cli.output import say
from gpubalance.render.run import window_text
from gpubalance.stages.events import Doing, Event


class Progress:
    """Prints events as they come; nothing when quiet."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet

    def __call__(self, event: Event) -> None:
        if self._quiet:
            return
        if isinstance(event, Doing):
            text = f"… {event.text}"
        else:
            text = window_text(event.number, event.of, event.name, event.devices, event.measurement)
        say(text, sys.stderr)
