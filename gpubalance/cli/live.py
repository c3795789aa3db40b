"""A screen on a terminal that shows what is being measured, and how long it still takes."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from gpubalance.jobs import events
from gpubalance.numbers.units import NO_TIME, DurationRange, format_duration
from gpubalance.render.live import (
    OWN,
    DeviceRow,
    LiveSplit,
    header_lines,
    joint_lines,
    own_lines,
    probe_lines,
)
from gpubalance.render.probe import curve_lines, device_line
from gpubalance.render.queue import running_lines
from gpubalance.results.probe import CurvePoint, Trial
from gpubalance.settings.device import Device
from gpubalance.settings.measuring import ON_HELD_BATCHES


class DoingNow:
    """What a command is doing now, as `text`; "working" before anything was said.

    A `Doing` that `stays` is a note for after the command, and nothing that is done now.
    """

    def __init__(self) -> None:
        self.text = "working"
        self._once_started: str | None = None  # while workers start: what they do then

    def take(self, event: events.Event) -> None:
        """Notes what is done from now on; an event that says nothing of it changes nothing."""
        match event:
            case events.Doing(text, stays=False):
                self.text = text
                self._once_started = None
            case events.Starting(text):
                self._once_started = self._once_started or self.text
                self.text = text
            case events.TimingDone() if self._once_started is not None:
                # The workers have started, and train, maybe for minutes.
                self.text = self._once_started
                self._once_started = None
            case events.QueueSeen():
                self.text = _queue_text(event)


def _queue_text(event: events.QueueSeen) -> str:
    counts = (
        f"{len(event.running)} running, {event.waiting} waiting, {event.ended} ended"
    )
    left = f"; about {format_duration(event.left_s)} left" if event.left_s else ""
    return counts + left


class Remaining:
    """The current phase, and the expected end of all of them. Its events come through `Phases`."""

    def __init__(self) -> None:
        self._phase = events.PhaseBegun("", 1, 0)
        self._began_s = time.monotonic()
        self._reported_s = self._began_s
        self._left_when_reported = NO_TIME
        self._later = NO_TIME  # for the phases after this one

    def take(self, event: events.Event) -> None:
        """Notes a new phase, or a better estimate; any other event says nothing."""
        now_s = time.monotonic()
        if isinstance(event, events.PhaseBegun):
            if not self._phase.name:  # the first phase: the command begins
                self._began_s = now_s
            self._phase = event
            self._reported_s = now_s
            self._later = event.later
            self._left_when_reported = (event.duration or NO_TIME) + event.later
        elif isinstance(event, events.TimeLeft):
            self._reported_s = now_s
            self._later = event.later
            self._left_when_reported = event.duration

    @property
    def line(self) -> str:
        """The line that is printed when a phase begins, where there is no screen.

        `phase 2 of 4, rounds: about 19 s; about 50 s of 2 min left`.
        """
        phase = self._phase
        place = self._place
        name = f"{place}, {phase.name}" if place else phase.name
        if phase.duration is None:  # of a command whose end nobody knows
            return name
        if not place:
            return f"{name}: about {self._whole}"
        if phase.number == 1:
            return f"{name}: about {phase.duration}; about {self._whole} in all"
        if phase.number == phase.of:
            return f"{name}: about {self._left_of_whole}"
        return f"{name}: about {phase.duration}; about {self._left_of_whole}"

    @property
    def short(self) -> str:
        """The text while it works: `phase 2 of 4, about 3 min of 6 min left`.

        Empty before the first phase. When a phase takes longer than expected nobody knows its end,
        so no time is given.
        """
        place = self._place
        if self._phase.duration is None:  # of a command whose end nobody knows
            return place
        left = f"about {self._left_of_whole}"
        # Nothing is left for this phase: it should be over.
        if self._left_by_estimate.most_s <= self._later.most_s:
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
        """About how long all of it takes, at most; 0 before the first phase."""
        if not self._phase.name:
            return 0.0
        return self._whole.most_s

    @property
    def _whole(self) -> DurationRange:
        took_s = time.monotonic() - self._began_s
        return DurationRange.about(took_s) + self._left

    @property
    def _left(self) -> DurationRange:
        """What is left: at least the later phases, even if this one should be over."""
        left = self._left_by_estimate
        later = self._later
        return DurationRange(
            max(left.least_s, later.least_s), max(left.most_s, later.most_s)
        )

    @property
    def _left_by_estimate(self) -> DurationRange:
        return self._left_when_reported.after(time.monotonic() - self._reported_s)

    @property
    def _left_of_whole(self) -> str:
        return f"{self._left} of {format_duration(self.whole_s)} left"


_REFRESHES_A_SECOND = 2


def can_redraw() -> bool:
    """Whether stderr is a terminal whose lines can be redrawn."""
    console = Console(stderr=True)
    return sys.stderr.isatty() and console.is_terminal and not console.is_dumb_terminal


class LiveScreen:
    """What is being done, how long it will take, and the state of every device.

    A thread draws it twice a second.
    """

    def __init__(self, remaining: Remaining, doing: DoingNow) -> None:
        # Guards what is drawn of devices; `remaining` and `doing` are changed without it. Printing
        # takes Rich's lock, which the drawing thread holds while it waits for this one: printing
        # under this one would deadlock.
        self._lock = threading.Lock()
        self._remaining = remaining
        self._doing = doing
        # Makes the lines below the header, for a width and at most a height.
        self._lines: Callable[[int, int], Sequence[Text]] = lambda *_: ()
        self._joint: dict[str, LiveSplit] = {}  # "even", and "" for the split itself
        # Of independent models and of a probe, by the device's UUID
        self._independent: dict[str, DeviceRow] = {}
        self._curves: dict[str, tuple[Device, dict[int, CurvePoint]]] = {}
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

    def show(self, event: events.Event) -> None:
        """Takes an event; the next refresh shows it."""
        with self._lock:
            self._take(event)
        if not self._live.is_started:
            self._live.start()
        if isinstance(event, events.DeviceDone):
            self._print_curve(event.device)

    def _take(self, event: events.Event) -> None:
        match event:
            case events.TimingDone():
                self._timing(event)
            case events.WindowDone():
                self._window(event)
            case events.RecordDone(CurvePoint() as point, (device,)):
                self._curve(device)[point.batch] = point
            case events.RecordDone(Trial(), (device,)):
                self._curve(device)  # switches to the curves
            case events.QueueSeen():
                self._queue(event)

    def _timing(self, event: events.TimingDone) -> None:
        if event.name in OWN:
            row = self._independent_row(event.devices[0], event.batches[0])
            row.rates[event.name] = row.batch / event.step_s
            row.gauges = event.gauges[0]
            return
        split = self._split(event.name, event.devices, event.batches)
        if "" in self._joint:
            # The table has the own split's rows. All splits here have the same devices.
            for row, gauges in zip(self._joint[""].rows, event.gauges, strict=True):
                row.gauges = gauges
        # A stamped step gives the devices' times; only steps without stamps count for rates.
        if event.compute_s is not None and event.update_s is not None:
            for number, row in enumerate(split.rows):
                row.compute_s = event.compute_s[number]
                row.update_s = event.update_s[number]
        else:
            split.step_s = event.step_s
            for row in split.rows:
                row.rates["samples/s"] = row.batch / event.step_s
            split.rates.append(sum(event.batches) / event.step_s)

    def _window(self, event: events.WindowDone) -> None:
        if isinstance(event.measured, tuple):  # independent models
            for window in event.measured:
                row = self._independent_row(window.device, window.batch)
                row.memory_bytes = window.memory_peak_bytes
            return
        split = self._split(event.name, event.devices, event.measured.batches)
        for replica in event.measured.replicas:
            split.rows[replica.device].memory_bytes = replica.memory_peak_bytes

    def _print_curve(self, device: Device) -> None:
        """Prints a device's whole curve once its probe ended: the summary has no room for it."""
        with self._lock:
            _, points = self._curves.pop(device.uuid, (device, {}))
        if points:
            curve = curve_lines(list(points.values()), self._console.width)
            self.print_above("\n".join([device_line(device), *curve, ""]))

    def _queue(self, event: events.QueueSeen) -> None:
        self._lines = lambda width, height: running_lines(
            event.devices, event.running, width, height
        )

    def _split(
        self, name: str, devices: tuple[Device, ...], batches: tuple[int, ...]
    ) -> LiveSplit:
        """What is shown of a split.

        A new own split replaces all before it, and so does any split of other devices. A new even
        split of the same devices replaces only the even one.
        """
        # The own split without its pipeline is not shown: the screen has it with the pipeline.
        if name == ON_HELD_BATCHES:
            return LiveSplit(devices, batches)
        self._lines = lambda width, height: joint_lines(self._joint, width, height)
        split = self._joint.get(name)
        if split is None or split.batches != batches or split.devices != devices:
            if not name or any(
                other.devices != devices for other in self._joint.values()
            ):
                self._joint.clear()
            split = LiveSplit(devices, batches)
            self._joint[name] = split
        return split

    def _independent_row(self, device: Device, batch: int) -> DeviceRow:
        self._lines = lambda width, height: own_lines(
            list(self._independent.values()), width, height
        )
        return self._independent.setdefault(device.uuid, DeviceRow(device, batch))

    def _curve(self, device: Device) -> dict[int, CurvePoint]:
        self._lines = self._curves_shown
        _, points = self._curves.setdefault(device.uuid, (device, {}))
        return points

    def _curves_shown(self, width: int, height: int) -> Sequence[Text]:
        curves = []
        for device, points in self._curves.values():
            if points:
                curves.append((device, list(points.values())))
        return probe_lines(curves, width, height)

    def print_above(self, text: str) -> None:
        """Prints a text above the screen, where it stays."""
        self._console.print(Text(text), soft_wrap=True)

    def _screen(self) -> Group:
        """What the drawing thread draws: the header, and the lines for which there is room."""
        width, height = self._console.size
        with self._lock:
            head = header_lines(self._doing.text, self._remaining.short, width)
            return Group(*head, *self._lines(width, height - len(head) - 1))

    def close(self) -> None:
        """Leaves the terminal as it was."""
        self._live.stop()
