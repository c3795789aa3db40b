"""Shows a job's events on stderr: a line for each, or, on a terminal, tables that grow."""

from __future__ import annotations

import math
import shutil
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

from gpubalance.cli.output import say
from gpubalance.errors import TimeLimitPassed
from gpubalance.jobs import events
from gpubalance.numbers.units import format_duration
from gpubalance.render.table import prose
from gpubalance.text import clean_lines

if TYPE_CHECKING:
    from typing_extensions import Self

    from gpubalance.cli.live import LiveScreen


EVERY_S = 10.0


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


_SLOWDOWN = 1.5  # of a busy machine
_ROUND_S = 10  # proposed time limits are multiples of it
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


def _text(event: events.Event) -> str:
    """The line for an event that has one; the others are for a screen."""
    # Here, as a command meets few of the events.
    from gpubalance.render import check, independent, layers, plan, probe, queue, run

    match event:
        case events.Doing() | events.Starting():
            return f"… {event.text}"
        case events.ModelBuilt(settings, model, own_batch, warned, samples):
            return check.model_built_text(settings, model, own_batch, warned, samples)
        case events.Planned(split):
            text = plan.own_batch_text(split)
            return text and f"first plan, which the rounds may change: {text}"
        case events.RoundDone(tried, devices):
            return plan.round_text(tried, devices)
        case events.WindowDone(number, of, name, devices, measurement):
            return run.window_text(number, of, name, devices, measurement)
        case events.CutDone(tried, devices, global_batch):
            return layers.cut_done_text(tried, devices, global_batch)
        case events.PipeWindowDone(number, of, throughput, step_time_s):
            return layers.pipe_window_text(number, of, throughput, step_time_s)
        case events.TurnDone(number, of, name, parts):
            return independent.turn_text(number, of, name, parts)
        case events.TrialDone(device, trial):
            return f"… {probe.trial_text(device, trial)}"
        case events.PointDone(device, point):
            return probe.point_text(device, point)
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
            error.remedy = f"all of it takes about {duration}: --time-limit {enough_s}"

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
        stays = (
            event.stays if isinstance(event, events.Doing) else isinstance(event, _STAY)
        )
        try:
            screen.show(event)
            if stays:
                screen.print(lines)
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


class DoingNow:
    """What a command is doing now, as `text`; "working" before anything was said.

    What stays after the command is a note, and nothing that is done.
    """

    def __init__(self) -> None:
        self.text = "working"
        self._then: str | None = None  # while workers start: what they do then

    def take(self, event: events.Event) -> None:
        """Notes what is done from now on; an event that says nothing of it changes nothing."""
        match event:
            case events.Doing(text, stays=False):
                self.text = text
                self._then = None
            case events.Starting(text):
                self._then = self._then or self.text
                self.text = text
            case events.TimingDone() if self._then is not None:
                # Their first steps may take minutes.
                self.text = self._then
                self._then = None
            case events.QueueSeen():
                self.text = _queue_text(event)


def _queue_text(event: events.QueueSeen) -> str:
    counts = (
        f"{len(event.running)} running, {event.waiting} waiting, {event.ended} ended"
    )
    left = f"; about {format_duration(event.left_s)} left" if event.left_s else ""
    return counts + left


class Remaining:
    """The current phase, and the expected end of all of them."""

    def __init__(self) -> None:
        self._phase = events.PhaseBegun("", 1, 0)
        self._began_s = time.monotonic()
        self._until_s = self._began_s
        self._later_s = 0.0  # for the phases after this one

    def take(self, event: events.Event) -> None:
        """Notes a new phase, or a better estimate; any other event says nothing."""
        now_s = time.monotonic()
        if isinstance(event, events.PhaseBegun):
            if not self._phase.name:
                self._began_s = now_s
            self._phase = event
            self._until_s = now_s + event.left_s
            self._later_s = event.left_s - event.seconds
        elif isinstance(event, events.TimeLeft):
            self._until_s = now_s + event.seconds
            self._later_s = event.later_s

    @property
    def line(self) -> str:
        """The line for the beginning of a phase, for where lines stay.

        `phase 2 of 4, proof: about 19 s; about …`.
        """
        phase = self._phase
        place = self._place
        name = phase.name
        if place:
            name = f"{place}, {name}"
        if not phase.left_s:  # of a command whose end nobody knows
            return name
        if not place:
            return f"{name}: about {format_duration(self.whole_s)}"
        rest = self._of_whole
        if phase.number == 1:
            rest = f"{format_duration(self.whole_s)} in all"
        return f"{name}: about {format_duration(phase.seconds)}; about {rest}"

    @property
    def short(self) -> str:
        """The text while it works: `phase 2 of 4, about 3 min of 6 left`.

        Empty before the first phase. When a phase takes longer than expected nobody knows its end,
        so no time is given.
        """
        place = self._place
        if not self._phase.left_s:  # of a command whose end nobody knows
            return place
        left = f"about {self._of_whole}"
        if self._until_s - time.monotonic() <= self._later_s:
            left = "longer than expected"
        if place:
            return f"{place}, {left}"
        return left

    @property
    def _place(self) -> str:
        """`phase 2 of 4`; empty if there is only one."""
        if self._phase.of <= 1:
            return ""
        return f"phase {self._phase.number} of {self._phase.of}"

    @property
    def whole_s(self) -> float:
        """About how long all of it takes; 0 before the first phase."""
        if not self._phase.name:
            return 0.0
        return time.monotonic() - self._began_s + self._left_s

    @property
    def _left_s(self) -> float:
        """The seconds that are left, at least those of the later phases."""
        return max(self._until_s - time.monotonic(), self._later_s)

    @property
    def _of_whole(self) -> str:
        left = format_duration(self._left_s)
        whole = format_duration(self.whole_s)
        number, unit = whole.split()
        if left.endswith(f" {unit}"):
            whole = number
        return f"{left} of {whole} left"
