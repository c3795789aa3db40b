"""What a stage tells, to stderr: a line an event, or, on a terminal, tables that grow."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from gpubalance.cli.output import say
from gpubalance.stages.events import DeviceDone, Doing, Event, PointDone, RoundDone, TrialDone, WindowDone

if TYPE_CHECKING:
    from typing_extensions import Self

    from gpubalance.cli.live import LiveTables

Result = TypeVar("Result")


class Progress:
    """Shows events as they come; nothing when quiet. Use it as a context manager where points are measured."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._tables: LiveTables | None = None

    def __enter__(self) -> Self:
        from gpubalance.cli.live import LiveTables, can_redraw

        if not self._quiet and can_redraw():
            self._tables = LiveTables()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tables is not None:
            self._tables.close()

    def during(self, work: Callable[[Progress], Result]) -> Result:
        """What the work gives, which tells us its events; the tables are closed before anybody prints it."""
        with self:
            return work(self)

    def __call__(self, event: Event) -> None:
        if self._quiet:
            return
        if isinstance(event, PointDone | DeviceDone) and self._tables is not None:
            self._redraw(self._tables, event)
            return
        text = _text(event)
        if text and self._tables is not None:
            self._tables.say(text)
        elif text:
            say(text, sys.stderr)

    def _redraw(self, tables: LiveTables, event: PointDone | DeviceDone) -> None:
        if isinstance(event, PointDone):
            tables.add(event.device, event.point)
        else:
            tables.done(event.device)


def _text(event: Event) -> str:
    from gpubalance.render.plan import round_text
    from gpubalance.render.probe import point_text, trial_text
    from gpubalance.render.run import window_text

    if isinstance(event, RoundDone):
        return round_text(event.round, event.devices)
    if isinstance(event, Doing):
        return _wrapped(f"… {event.text}")
    if isinstance(event, WindowDone):
        return window_text(event.number, event.of, event.name, event.devices, event.measurement)
    if isinstance(event, TrialDone):
        return _wrapped(f"… {trial_text(event.device, event.trial)}")
    return point_text(event.device, event.point) if isinstance(event, PointDone) else ""


def _wrapped(text: str) -> str:
    """In a terminal on lines of its width; elsewhere, for programs, on one."""
    if not sys.stderr.isatty():
        return text
    return textwrap.fill(text, max(20, shutil.get_terminal_size().columns), subsequent_indent="  ")
