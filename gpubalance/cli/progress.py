"""Shows a job's events on stderr: a line for each, or, on a terminal, tables that grow."""

from __future__ import annotations

import math
import shutil
import sys
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

from gpubalance.cli.output import say
from gpubalance.cli.remaining import Remaining
from gpubalance.errors import TimeLimitPassed
from gpubalance.jobs.events import (
    CutDone,
    Doing,
    Event,
    PhaseBegun,
    PipeWindowDone,
    PointDone,
    RoundDone,
    TimeLeft,
    TrialDone,
    TurnDone,
    WindowDone,
)
from gpubalance.numbers.units import format_duration
from gpubalance.render.table import prose
from gpubalance.text import clean_lines

if TYPE_CHECKING:
    from typing_extensions import Self

    from gpubalance.cli.live import LiveScreen

_SLOWER, _ROUND_S = 1.5, 10  # the slowdown of a busy machine; proposed limits are multiples of this


class Progress:
    """A listener that shows events as they come, or nothing if quiet. On a terminal its `with` block has a screen."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._screen: LiveScreen | None = None
        self._remaining = Remaining()

    def __enter__(self) -> Self:
        from gpubalance.cli.live import LiveScreen, can_redraw

        if not self._quiet and can_redraw():
            self._screen = LiveScreen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, TimeLimitPassed):
            self._tell_what_it_takes(error)
        if self._screen is not None:
            with suppress(OSError):  # the terminal may be gone, but not the result
                self._screen.close()

    def _tell_what_it_takes(self, error: TimeLimitPassed) -> None:
        whole_s = self._remaining.whole_s
        if error.partial is None:
            error.message += " before anything was measured"
        if whole_s > error.seconds:
            enough = math.ceil(_SLOWER * whole_s / _ROUND_S) * _ROUND_S
            error.remedy = f"all of it takes about {format_duration(whole_s)}: --time-limit {enough}"

    def __call__(self, event: Event) -> None:
        from gpubalance.render.independent import turn_text
        from gpubalance.render.layers import cut_done_text, pipe_window_text
        from gpubalance.render.plan import round_text
        from gpubalance.render.probe import point_text, trial_text
        from gpubalance.render.run import window_text

        if isinstance(event, PhaseBegun | TimeLeft):
            self._remaining.take(event)
        if self._quiet:
            return
        text = ""  # stays empty for what only a screen shows
        if isinstance(event, RoundDone):
            text = round_text(event.round, event.devices)
        elif isinstance(event, PhaseBegun):
            text = f"… {self._remaining.line}"
        elif isinstance(event, Doing):
            text = f"… {event.text}"
        elif isinstance(event, WindowDone):
            text = window_text(event.number, event.of, event.name, event.devices, event.measurement)
        elif isinstance(event, CutDone):
            text = cut_done_text(event.round, event.devices, event.global_batch)
        elif isinstance(event, PipeWindowDone):
            text = pipe_window_text(event.number, event.of, event.throughput, event.step_time_s)
        elif isinstance(event, TurnDone):
            text = turn_text(event.number, event.of, event.name, event.parts)
        elif isinstance(event, TrialDone):
            text = f"… {trial_text(event.device, event.trial)}"
        elif isinstance(event, PointDone):
            text = point_text(event.device, event.point)
        line = "\n".join(prose(clean_lines(text), _width()))
        if self._screen is None:
            if line:
                say(line, sys.stderr)
            return
        try:
            self._screen.show(event)
            # Attempts and their outcomes stay above the screen.
            tried = isinstance(event, RoundDone | CutDone | PipeWindowDone | TrialDone)
            if tried or (isinstance(event, Doing) and event.stays):
                self._screen.say(line)
        except OSError:
            self._quiet = True


def _width() -> int:
    """The columns of a terminal; elsewhere lines are not wrapped, for programs."""
    return shutil.get_terminal_size().columns if sys.stderr.isatty() else sys.maxsize
