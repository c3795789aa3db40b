"""Shows a job's events on stderr: a line for each, or, on a terminal, tables that grow."""

from __future__ import annotations

import math
import shutil
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

from gpubalance.cli.live import DoingNow, Remaining
from gpubalance.cli.output import say
from gpubalance.errors import TimeLimitPassed
from gpubalance.jobs import events
from gpubalance.numbers.units import format_duration
from gpubalance.render.table import prose
from gpubalance.results.layers import LayersRound
from gpubalance.results.plan import Plan, Round
from gpubalance.results.probe import CurvePoint, Trial
from gpubalance.results.run import Measurement
from gpubalance.text import clean_lines

if TYPE_CHECKING:
    from typing_extensions import Self

    from gpubalance.cli.live import LiveScreen


EVERY_S = 10.0
_SLOWDOWN = 1.5  # of a busy machine
_ROUND_S = 10  # proposed time limits are multiples of it
# Attempts and their outcomes stay above the screen.
_STAY = (
    Trial,
    Plan,
    Round,
    LayersRound,
    events.ModelBuilt,
    events.PipeWindowDone,
    events.CommandEnded,
)


class Heartbeat:
    """Calls `beat` from a thread whenever nothing else was printed for so many seconds."""

    def __init__(self, beat: Callable[[], None], every_s: float = EVERY_S) -> None:
        self._beat = beat
        self._every_s = every_s
        self._printed = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def postpone(self) -> None:
        """Something was printed: the next beat is due after the whole time."""
        self._printed.set()

    def end(self) -> None:
        """Ends the thread."""
        self._ended = True
        self._printed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended:
            if not self._printed.wait(self._every_s):
                self._beat()
            self._printed.clear()


def _text(event: events.Event) -> str:
    """The line for an event that has one; the others are for a screen."""
    # Here, as a command meets few of the events.
    from gpubalance.render import checkup, independent, layers, plan, probe, queue, run

    match event:
        case events.Doing() | events.Starting():
            return f"… {event.text}"
        case events.ModelBuilt(settings, model, own_batch, warned, samples):
            return checkup.model_built_text(settings, model, own_batch, warned, samples)
        case events.RecordDone(Plan() as record):
            text = plan.own_batch_text(record)
            return (
                text
                and f"first plan, which the measurements that follow may change: {text}"
            )
        case events.RecordDone(Round() as record, devices):
            return plan.round_text(record, devices)
        case events.RecordDone(LayersRound() as record, devices, global_batch):
            return layers.cut_done_text(record, devices, global_batch)
        case events.RecordDone(Trial() as record, (device,)):
            return f"… {probe.trial_text(device, record)}"
        case events.RecordDone(CurvePoint() as record, (device,)):
            return probe.point_text(device, record)
        case events.WindowDone(number, of, name, devices, Measurement() as measured):
            return run.window_text(number, of, name, devices, measured)
        case events.WindowDone(number, of, name, _, tuple() as windows):
            return independent.window_text(number, of, name, windows)
        case events.PipeWindowDone(number, of, throughput, step_time_s):
            return layers.pipe_window_text(number, of, throughput, step_time_s)
        case events.CommandBegun(device, command):
            return queue.begun_text(device, command)
        case events.CommandEnded(device, command, next_on):
            return queue.ended_text(device, command, next_on)
    return ""


class Progress:
    """A listener that shows events as they come, or nothing if quiet.

    On a terminal its `with` block has a screen. Elsewhere a line says what is being done, and how
    much is left, when nothing else was printed for `every_s` seconds of a phase.
    """

    def __init__(self, *, quiet: bool, every_s: float = EVERY_S) -> None:
        self._quiet = quiet
        self._every_s = every_s
        self._screen: LiveScreen | None = None
        self._heartbeat: Heartbeat | None = None
        self._printing = threading.Lock()
        self._remaining = Remaining()
        self._in_a_phase = False
        self._doing = DoingNow()
        self._left = ""  # the time that was last said to be left

    def __enter__(self) -> Self:
        from gpubalance.cli.live import LiveScreen, can_redraw

        if not self._quiet and can_redraw():
            self._screen = LiveScreen(self._remaining, self._doing)
        elif not self._quiet:
            self._heartbeat = Heartbeat(self._print_still, self._every_s)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, TimeLimitPassed):
            self._propose_limit(error)
        if self._heartbeat is not None:
            self._heartbeat.end()
        if self._screen is not None:
            with suppress(OSError):  # the terminal may be gone, but not the result
                self._screen.close()

    def _propose_limit(self, error: TimeLimitPassed) -> None:
        whole_s = self._remaining.whole_s
        if error.partial is None:
            error.message += " before there was a result"
        if whole_s > error.seconds:
            enough_s = math.ceil(_SLOWDOWN * whole_s / _ROUND_S) * _ROUND_S
            duration = format_duration(whole_s)
            error.propose(enough_s, f"all of it takes about {duration}")

    def __call__(self, event: events.Event) -> None:
        self._remaining.take(event)
        self._doing.take(event)
        if self._quiet:
            return
        text = _text(event)
        if isinstance(event, events.PhaseBegun):
            self._in_a_phase = True
            text = f"… {self._remaining.line}"
        lines = "\n".join(prose(clean_lines(text), _width()))
        if self._screen is not None:
            self._show(self._screen, event, lines)
        elif lines:
            self._print(lines)

    def _show(self, screen: LiveScreen, event: events.Event, lines: str) -> None:
        shown = event.record if isinstance(event, events.RecordDone) else event
        stays = (
            shown.stays if isinstance(shown, events.Doing) else isinstance(shown, _STAY)
        )
        try:
            screen.show(event)
            if stays:
                screen.print_above(lines)
        except OSError:
            self._quiet = True

    def _print(self, lines: str) -> None:
        with self._printing:
            say(lines, sys.stderr)
        if self._heartbeat is not None:
            self._heartbeat.postpone()

    def _print_still(self) -> None:
        """Prints what is still being done, once a phase has begun, and how much is left.

        Of that nothing that was said the last time.

        A queue has no phases, and prints when commands end.
        """
        if self._in_a_phase:
            text = f"… still {clean_lines(self._doing.text)}"
            left = self._remaining.short
            if left and left != self._left:
                text += f"; {left}"
            self._left = left
            with self._printing:
                say(text, sys.stderr)


def _width() -> int:
    """The columns of a terminal; elsewhere lines are not wrapped, for programs."""
    return shutil.get_terminal_size().columns if sys.stderr.isatty() else sys.maxsize
