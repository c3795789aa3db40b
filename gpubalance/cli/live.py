"""A screen on a terminal that shows what is being measured. What should stay is printed above it."""

from __future__ import annotations

import sys
import threading

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from gpubalance.cli.remaining import Remaining
from gpubalance.jobs.events import (
    DeviceDone,
    Doing,
    Event,
    PhaseBegun,
    PointDone,
    TimeLeft,
    TimingDone,
    TrialDone,
    TurnDone,
    WindowDone,
)
from gpubalance.render.live import Course, header_lines, joint_lines, probe_lines
from gpubalance.render.live_own import OwnCourse, own_lines
from gpubalance.render.probe import curve_lines, device_line
from gpubalance.results.probe import CurvePoint
from gpubalance.settings.device import Device

_REFRESHES_A_SECOND = 2


def can_redraw() -> bool:
    """Whether stderr is a terminal whose lines can be redrawn."""
    console = Console(stderr=True)
    return sys.stderr.isatty() and console.is_terminal and not console.is_dumb_terminal


class LiveScreen:
    """What is being done, how long it will take, and the state of every device. A thread draws it twice a second."""

    def __init__(self) -> None:
        # Guards the state, which the drawing thread reads. Never print while holding it: that thread has Rich's lock.
        self._lock = threading.Lock()
        self._doing = ""
        self._remaining = Remaining()
        self._state: JointState | OwnState | ProbeState | None = None
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
        """Takes an event; the next refresh shows it."""
        with self._lock:
            self._take(event)
        if not self._live.is_started:
            self._live.start()
        if isinstance(event, DeviceDone):
            self._print_curve(event.device)

    def _take(self, event: Event) -> None:
        if isinstance(event, PhaseBegun | TimeLeft):
            self._remaining.take(event)
        if isinstance(event, Doing):
            self._doing = event.text
        elif isinstance(event, TurnDone) or (isinstance(event, TimingDone) and event.name in OwnState.names):
            if not isinstance(self._state, OwnState):
                self._state = OwnState()
            self._state.take(event)
        elif isinstance(event, TimingDone | WindowDone):
            if not isinstance(self._state, JointState) or not self._state.is_of(event):
                self._state = JointState(event.devices)
            self._state.take(event)
        elif isinstance(event, PointDone | TrialDone | DeviceDone):
            if not isinstance(self._state, ProbeState):
                self._state = ProbeState()
            self._state.take(event)

    def _print_curve(self, device: Device) -> None:
        """Prints the whole curve above the screen, where it stays, as the summary has no room for it."""
        points = self._state.points(device) if isinstance(self._state, ProbeState) else []
        if points:
            self.say("\n".join([device_line(device), *curve_lines(points, self._console.width), ""]))

    def say(self, lines: str) -> None:
        """Prints lines above the screen, where they stay."""
        self._console.print(Text(lines), soft_wrap=True)

    def _screen(self) -> Group:
        width, height = self._console.size
        with self._lock:
            head = header_lines(self._doing, self._remaining.short, width)
            state = self._state.lines(width, height - len(head) - 1) if self._state else []
        return Group(*head, *state)

    def close(self) -> None:
        """Leaves the terminal as it was."""
        self._live.stop()


class JointState:
    """A joint run of some devices: the split, and the even split beside it."""

    def __init__(self, devices: tuple[Device, ...]) -> None:
        self._devices = devices
        self._own: Course | None = None
        self._even: Course | None = None

    def is_of(self, event: TimingDone | WindowDone) -> bool:
        """Whether the event is about these devices."""
        return [d.uuid for d in self._devices] == [d.uuid for d in event.devices]

    def take(self, event: TimingDone | WindowDone) -> None:
        """Takes an event; a new split replaces the one before it."""
        if event.name == "held":  # the same split without its pipeline: the screen shows it with the pipeline
            return
        batches = event.batches if isinstance(event, TimingDone) else event.measurement.batches
        course = self._even if event.name else self._own
        if course is None or course.batches != batches:
            course = Course(self._devices, batches)
            if event.name:
                self._even = course
            else:
                self._own, self._even = course, None
        if isinstance(event, WindowDone):
            course.memory_bytes = [replica.memory_peak_bytes for replica in event.measurement.replicas]
            return
        if self._own is not None:
            self._own.gauges = event.gauges
        if event.compute_s is not None and event.update_s is not None:
            course.compute_s, course.update_s = event.compute_s, event.update_s
        else:
            course.step_s = event.step_s
            course.rates.append(sum(batches) / event.step_s)

    def lines(self, width: int, height: int) -> list[Text]:
        """The screen's lines, in `width` columns and at most `height` lines."""
        return joint_lines(self._own, self._even, width, height) if self._own is not None else []


class OwnState:
    """Devices that each train a model of their own."""

    names = ("alone", "at once")

    def __init__(self) -> None:
        self._courses: dict[str, OwnCourse] = {}

    def take(self, event: TimingDone | TurnDone) -> None:
        """Takes a device's timing, or a window."""
        if isinstance(event, TurnDone):
            for part in event.parts:
                self._course(part.device, part.batch).memory_bytes = part.memory_peak_bytes
            return
        ((device,), (batch,)) = event.devices, event.batches
        course = self._course(device, batch)
        course.rates[event.name] = batch / event.step_s
        course.gauges = event.gauges[0]

    def _course(self, device: Device, batch: int) -> OwnCourse:
        return self._courses.setdefault(device.uuid, OwnCourse(device, batch))

    def lines(self, width: int, height: int) -> list[Text]:
        """The screen's lines, in `width` columns and at most `height` lines."""
        courses = sorted(self._courses.values(), key=lambda course: (course.device.host or "", course.device.index))
        return own_lines(courses, width, height) if courses else []


class ProbeState:
    """Devices that are probed, each alone: their curves, and which of them are finished."""

    def __init__(self) -> None:
        self._devices: dict[str, Device] = {}
        self._points: dict[str, dict[int, CurvePoint]] = {}
        self._done: set[str] = set()

    def take(self, event: PointDone | TrialDone | DeviceDone) -> None:
        """Takes a point, a trial, or the end of a device."""
        uuid = event.device.uuid
        self._devices[uuid] = event.device
        points = self._points.setdefault(uuid, {})
        if isinstance(event, PointDone):
            points[event.point.batch] = event.point
        elif isinstance(event, DeviceDone):
            self._done.add(uuid)

    def points(self, device: Device) -> list[CurvePoint]:
        """The measured points of a device."""
        return list(self._points.get(device.uuid, {}).values())

    def lines(self, width: int, height: int) -> list[Text]:
        """The tables of the unfinished devices, as far as there is room."""
        going = [(d, self.points(d)) for uuid, d in self._devices.items() if uuid not in self._done]
        return probe_lines([(device, points) for device, points in going if points], width, height)
