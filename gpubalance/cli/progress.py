"""What a stage tells, to stderr: a line an event, or, on a terminal, tables that grow."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from gpubalance.cli.output import say
from gpubalance.jobs.events import Doing, Event, PointDone, RoundDone, TrialDone, WindowDone
from gpubalance.text import clean_lines

if TYPE_CHECKING:
    from typing_extensions import Self

    from gpubalance.cli.live import LiveScreen

Result = TypeVar("Result")


class Progress:
    """Shows events as they come; nothing when quiet. Use it as a context manager where something is measured."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._screen: LiveScreen | None = None

    def __enter__(self) -> Self:
        from gpubalance.cli.live import LiveScreen, can_redraw

        if not self._quiet and can_redraw():
            self._screen = LiveScreen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._screen is not None:
            with suppress(OSError):  # the terminal may be gone, and the result is not
                self._screen.close()

    def during(self, work: Callable[[Progress], Result]) -> Result:
        """What the work gives, which tells us its events; the screen is closed before anybody prints it."""
        with self:
            return work(self)

    def __call__(self, event: Event) -> None:
        if self._quiet:
            return
        if self._screen is not None:
            try:
                self._screen.show(event)
                if _kept(event):
                    self._screen.say(_wrapped(clean_lines(_text(event))))
            except OSError:
                self._quiet = True
        elif text := _text(event):
            say(_wrapped(clean_lines(text)), sys.stderr)


def _text(event: Event) -> str:
    """One line an event; empty for what only a screen shows."""
    from gpubalance.render.plan import round_text
    from gpubalance.render.probe import point_text, trial_text
    from gpubalance.render.run import window_text

    if isinstance(event, RoundDone):
        return round_text(event.round, event.devices)
    if isinstance(event, Doing):
        return f"… {event.text}"
    if isinstance(event, WindowDone):
        return window_text(event.number, event.of, event.name, event.devices, event.measurement)
    if isinstance(event, TrialDone):
        return f"… {trial_text(event.device, event.trial)}"
    return point_text(event.device, event.point) if isinstance(event, PointDone) else ""


def _kept(event: Event) -> bool:
    """Whether it stays above the screen: what was tried, and what came of it."""
    return isinstance(event, RoundDone | TrialDone)


def _wrapped(text: str) -> str:
    """In a terminal on lines of its width; elsewhere, for programs, on one."""
    if not sys.stderr.isatty():
        return text
    return textwrap.fill(text, max(20, shutil.get_terminal_size().columns), subsequent_indent="  ")
