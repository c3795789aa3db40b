"""What a stage tells, to stderr, a line an event."""

from __future__ import annotations

import shutil
import sys
import textwrap

from gpubalance.cli.output import say
from gpubalance.config import Device
from gpubalance.render.probe import curve_lines, trial_text
from gpubalance.render.run import window_text
from gpubalance.stages.events import Doing, Event, PointDone, TrialDone, WindowDone


class Progress:
    """Prints events as they come; nothing when quiet."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._device: Device | None = None

    def __call__(self, event: Event) -> None:
        if self._quiet:
            return
        if isinstance(event, Doing):
            text = _wrapped(f"… {event.text}")
        elif isinstance(event, WindowDone):
            text = window_text(event.number, event.of, event.name, event.devices, event.measurement)
        elif isinstance(event, TrialDone):
            text = _wrapped(f"… {trial_text(event.device, event.trial)}")
        else:
            text = self._point(event)
        say(text, sys.stderr)

    def _point(self, event: PointDone) -> str:
        """The row of a batch size; the table's head stands above the first of a device."""
        head, row = curve_lines([event.point])
        first = event.device != self._device
        self._device = event.device
        return f"{head}\n{row}" if first else row


def _wrapped(text: str) -> str:
    """In a terminal on lines of its width; elsewhere, for programs, on one."""
    if not sys.stderr.isatty():
        return text
    return textwrap.fill(text, max(20, shutil.get_terminal_size().columns), subsequent_indent="  ")
