"""What a job tells, on stderr: a line an event, or, on a terminal, tables that grow."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from gpubalance.cli.output import say
from gpubalance.cli.remaining import Remaining
from gpubalance.jobs.events import Doing, Event, PhaseBegun, PointDone, RoundDone, TrialDone, WindowDone
from gpubalance.text import clean_lines

if TYPE_CHECKING:
    from gpubalance.cli.live import LiveScreen

Result = TypeVar("Result")


class Progress:
    """A listener that shows events as they come; nothing when quiet. On a terminal `during` gives it a screen."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._screen: LiveScreen | None = None
        self._remaining = Remaining()

    def during(self, work: Callable[[Progress], Result]) -> Result:
        """What the work gives, which tells us its events; the screen is closed before anybody prints it."""
        from gpubalance.cli.live import LiveScreen, can_redraw

        if not self._quiet and can_redraw():
            self._screen = LiveScreen()
        try:
            return work(self)
        finally:
            if self._screen is not None:
                with suppress(OSError):  # the terminal may be gone, and the result is not
                    self._screen.close()

    def __call__(self, event: Event) -> None:
        from gpubalance.render.plan import round_text
        from gpubalance.render.probe import point_text, trial_text
        from gpubalance.render.run import window_text

        if self._quiet:
            return
        self._remaining.take(event)
        text = ""  # for what only a screen shows
        if isinstance(event, RoundDone):
            text = round_text(event.round, event.devices)
        elif isinstance(event, PhaseBegun):
            text = f"… {self._remaining.line}"
        elif isinstance(event, Doing):
            text = f"… {event.text}"
        elif isinstance(event, WindowDone):
            text = window_text(event.number, event.of, event.name, event.devices, event.measurement)
        elif isinstance(event, TrialDone):
            text = f"… {trial_text(event.device, event.trial)}"
        elif isinstance(event, PointDone):
            text = point_text(event.device, event.point)
        line = _wrapped(clean_lines(text))
        if self._screen is None:
            if line:
                say(line, sys.stderr)
            return
        try:
            self._screen.show(event)
            if isinstance(event, RoundDone | TrialDone):  # what was tried stays, and what came of it
                self._screen.say(line)
        except OSError:
            self._quiet = True


def _wrapped(text: str) -> str:
    """On lines of a terminal's width; on one line elsewhere, for programs."""
    if not sys.stderr.isatty():
        return text
    return textwrap.fill(text, max(20, shutil.get_terminal_size().columns), subsequent_indent="  ")
