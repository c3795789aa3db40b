"""What a stage tells, to stderr, a line an event."""

from __future__ import annotations

import shutil
import sys
import textwrap

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
            text = _wrapped(f"… {event.text}")
        else:
            text = window_text(event.number, event.of, event.name, event.devices, event.measurement)
        say(text, sys.stderr)


def _wrapped(text: str) -> str:
    """In a terminal on lines of its width; elsewhere, for programs, on one."""
    if not sys.stderr.isatty():
        return text
    return textwrap.fill(text, max(20, shutil.get_terminal_size().columns), subsequent_indent="  ")
