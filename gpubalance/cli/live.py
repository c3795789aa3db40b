"""One screen that shows what is measured, on a terminal. What stays is printed above it; it goes at the end."""

from __future__ import annotations

import sys
import threading
import time

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from gpubalance.cli.live_state import JointState, ProbeState
from gpubalance.jobs.events import DeviceDone, Doing, Event, PointDone, TimeLeft, TimingDone, TrialDone, WindowDone
from gpubalance.render.live import header_lines
from gpubalance.render.probe import curve_lines, device_line
from gpubalance.settings.device import Device

_REFRESHES_A_SECOND = 2


def can_redraw() -> bool:
    """Whether stderr is a terminal in which lines can be drawn anew."""
    console = Console(stderr=True)
    return sys.stderr.isatty() and console.is_terminal and not console.is_dumb_terminal


class LiveScreen:
    """What is done now and how long it goes on, and the state of every device. Drawn by a thread, twice a second."""

    def __init__(self) -> None:
        # Of the state, which the drawing thread reads. Nothing is printed within it: that thread holds Rich's own lock.
        self._lock = threading.Lock()
        self._doing = ""
        self._until_s: float | None = None
        self._state: JointState | ProbeState | None = None
        self._console = Console(stderr=True, highlight=False)
        self._live = Live(
            console=self._console,
            get_renderable=self._screen,
            refresh_per_second=_REFRESHES_A_SECOND,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )

    def show(self, event: Event) -> None:
        """Takes in what happened; it is seen at the next refresh."""
        with self._lock:
            self._take(event)
        if not self._live.is_started:
            self._live.start()
        if isinstance(event, DeviceDone):
            self._print_curve(event.device)

    def _take(self, event: Event) -> None:
        if isinstance(event, Doing):
            self._doing = event.text
        elif isinstance(event, TimeLeft):
            self._until_s = time.monotonic() + event.seconds
        elif isinstance(event, TimingDone | WindowDone):
            if not isinstance(self._state, JointState) or not self._state.is_of(event):
                self._state = JointState(event.devices)
            self._state.take(event)
        elif isinstance(event, PointDone | TrialDone | DeviceDone):
            if not isinstance(self._state, ProbeState):
                self._state = ProbeState()
            self._state.take(event)

    def _print_curve(self, device: Device) -> None:
        """The whole of it stays above: the summary has no room for it."""
        points = self._state.points(device) if isinstance(self._state, ProbeState) else []
        if points:
            self.say("\n".join([device_line(device), *curve_lines(points, self._console.width), ""]))

    def say(self, lines: str) -> None:
        """Lines above the screen, which stay."""
        self._console.print(Text(lines), soft_wrap=True)

    def _screen(self) -> Group:
        width, height = self._console.size
        left_s = None if self._until_s is None else self._until_s - time.monotonic()
        with self._lock:
            head = header_lines(self._doing, left_s, width)
            state = self._state.lines(width, height - len(head) - 1) if self._state else []
        return Group(*head, *state)

    def close(self) -> None:
        """Leaves the terminal as it was."""
        self._live.stop()
