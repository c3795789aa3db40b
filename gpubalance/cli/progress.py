"""Shows a job's events on stderr: a line for each, or, on a terminal, tables that grow."""

from __future__ import annotations

import math
import shutil
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gpubalance.cli.heartbeat import EVERY_S, Heartbeat
from gpubalance.cli.output import say
from gpubalance.cli.remaining import Remaining
from gpubalance.errors import TimeLimitPassed
from gpubalance.jobs import events
from gpubalance.numbers.units import format_duration
from gpubalance.render.table import prose
from gpubalance.text import clean_lines

if TYPE_CHECKING:
    from typing_extensions import Self

    from gpubalance.cli.live import LiveScreen

_SLOWER, _ROUND_S = 1.5, 10  # the slowdown of a busy machine; proposed limits are multiples of this
# Attempts and their outcomes stay above the screen.
_STAY = (
    events.ModelBuilt,
    events.Planned,
    events.RoundDone,
    events.CutDone,
    events.PipeWindowDone,
    events.TrialDone,
    events.CommandEnded,
)


@cache
def _texts() -> Mapping[type, Callable[[Any], str]]:
    """The line for each kind of event that has one; the others are for a screen."""
    from gpubalance.render.check import model_built_text
    from gpubalance.render.independent import turn_text
    from gpubalance.render.layers import cut_done_text, pipe_window_text
    from gpubalance.render.plan import own_batch_text, round_text
    from gpubalance.render.probe import point_text, trial_text
    from gpubalance.render.queue import begun_text, ended_text
    from gpubalance.render.run import window_text

    return {
        events.Doing: lambda e: f"… {e.text}",
        events.ModelBuilt: lambda e: model_built_text(e.settings, e.model, e.own_batch, e.warned),
        events.Planned: lambda e: own_batch_text(e.plan),
        events.RoundDone: lambda e: round_text(e.round, e.devices),
        events.WindowDone: lambda e: window_text(e.number, e.of, e.name, e.devices, e.measurement),
        events.CutDone: lambda e: cut_done_text(e.round, e.devices, e.global_batch),
        events.PipeWindowDone: lambda e: pipe_window_text(
            e.number, e.of, e.throughput, e.step_time_s
        ),
        events.TurnDone: lambda e: turn_text(e.number, e.of, e.name, e.parts),
        events.TrialDone: lambda e: f"… {trial_text(e.device, e.trial)}",
        events.PointDone: lambda e: point_text(e.device, e.point),
        events.CommandBegun: lambda e: begun_text(e.device, e.command),
        events.CommandEnded: lambda e: ended_text(e.device, e.command, e.next_on),
    }


class Progress:
    """A listener that shows events as they come, or nothing if quiet.

    On a terminal its `with` block has a screen. Elsewhere a line says what is being done, and how
    much is left, when nothing else was said for `every_s` seconds of a phase.
    """

    def __init__(self, *, quiet: bool, every_s: float = EVERY_S) -> None:
        self._quiet = quiet
        self._every_s = every_s
        self._screen: LiveScreen | None = None
        self._heartbeat: Heartbeat | None = None
        self._saying = threading.Lock()
        self._remaining = Remaining()
        self._in_a_phase, self._doing = False, "working"

    def __enter__(self) -> Self:
        from gpubalance.cli.live import LiveScreen, can_redraw

        if not self._quiet and can_redraw():
            self._screen = LiveScreen(self._remaining)
        elif not self._quiet:
            self._heartbeat = Heartbeat(self._say_still, self._every_s)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, TimeLimitPassed):
            self._tell_what_it_takes(error)
        if self._heartbeat is not None:
            self._heartbeat.end()
        if self._screen is not None:
            with suppress(OSError):  # the terminal may be gone, but not the result
                self._screen.close()

    def _tell_what_it_takes(self, error: TimeLimitPassed) -> None:
        whole_s = self._remaining.whole_s
        if error.partial is None:
            error.message += " before anything was measured"
        if whole_s > error.seconds:
            enough = math.ceil(_SLOWER * whole_s / _ROUND_S) * _ROUND_S
            error.remedy = (
                f"all of it takes about {format_duration(whole_s)}: --time-limit {enough}"
            )

    def __call__(self, event: events.Event) -> None:
        self._remaining.take(event)
        if self._quiet:
            return
        if isinstance(event, events.Doing):
            self._doing = event.text
        elif isinstance(event, events.PhaseBegun):
            self._in_a_phase = True
        text = f"… {self._remaining.line}" if isinstance(event, events.PhaseBegun) else ""
        if type(event) in _texts():
            text = _texts()[type(event)](event)
        line = "\n".join(prose(clean_lines(text), _width()))
        if self._screen is None:
            if line:
                self._say(line)
            return
        try:
            self._screen.show(event)
            if isinstance(event, _STAY) or (isinstance(event, events.Doing) and event.stays):
                self._screen.say(line)
        except OSError:
            self._quiet = True

    def _say(self, line: str) -> None:
        with self._saying:
            say(line, sys.stderr)
        if self._heartbeat is not None:
            self._heartbeat.said()

    def _say_still(self) -> None:
        """Says what is still being done, once a phase has begun: a queue has none, and says when
        commands end.
        """
        if self._in_a_phase:
            left = f"; {self._remaining.short}" if self._remaining.short else ""
            with self._saying:
                say(f"… still {clean_lines(self._doing)}{left}", sys.stderr)


def _width() -> int:
    """The columns of a terminal; elsewhere lines are not wrapped, for programs."""
    return shutil.get_terminal_size().columns if sys.stderr.isatty() else sys.maxsize
