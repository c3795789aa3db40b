"""A screen on a terminal that shows what is being measured. What should stay is printed
above it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from gpubalance.jobs import events
from gpubalance.numbers.units import format_duration
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
from gpubalance.results.probe import CurvePoint
from gpubalance.settings.device import Device

if TYPE_CHECKING:
    from gpubalance.cli.remaining import Remaining

_REFRESHES_A_SECOND = 2


def can_redraw() -> bool:
    """Whether stderr is a terminal whose lines can be redrawn."""
    console = Console(stderr=True)
    return sys.stderr.isatty() and console.is_terminal and not console.is_dumb_terminal


class LiveScreen:
    """What is being done, how long it will take, and the state of every device. A thread draws it
    twice a second.

    Each kind of event has a function here.
    """

    def __init__(self, remaining: Remaining) -> None:
        # Guards what is shown, which the drawing thread reads. Never print while holding it: that
        # has Rich's lock.
        self._lock = threading.Lock()
        self._remaining = remaining
        self._doing = ""
        # In a width, and at most a height.
        self._lines: Callable[[int, int], Sequence[Text]] = lambda *_: ()
        self._joint: dict[str, LiveSplit] = {}  # "even", and "" for the split itself
        self._own: dict[str, DeviceRow] = {}
        self._curves: dict[str, tuple[Device, dict[int, CurvePoint]]] = {}
        self._takers: Mapping[type, Callable[[Any], object]] = {
            events.TimingDone: self._timing,
            events.WindowDone: self._window,
            events.TurnDone: self._turn,
            events.PointDone: lambda event: self._curve(event.device).update(
                {event.point.batch: event.point}
            ),
            events.TrialDone: lambda event: self._curve(event.device),
            events.QueueSeen: self._queue,
        }
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
            if isinstance(event, events.Doing):
                self._doing = event.text
            elif type(event) in self._takers:
                self._takers[type(event)](event)
        if not self._live.is_started:
            self._live.start()
        if isinstance(event, events.DeviceDone):
            self._whole_curve(event.device)

    def _timing(self, event: events.TimingDone) -> None:
        if event.name in OWN:
            row = self._of_own(event.devices[0], event.batches[0])
            row.rates[event.name], row.gauges = row.batch / event.step_s, event.gauges[0]
            return
        course = self._course(event.name, event.devices, event.batches)
        if "" in self._joint:
            for row, gauges in zip(self._joint[""].rows, event.gauges, strict=True):
                row.gauges = gauges
        if event.compute_s is not None and event.update_s is not None:
            for row, compute_s, update_s in zip(
                course.rows, event.compute_s, event.update_s, strict=True
            ):
                row.compute_s, row.update_s = compute_s, update_s
        else:
            course.step_s = event.step_s
            for row in course.rows:
                row.rates["samples/s"] = row.batch / event.step_s
            course.rates.append(sum(event.batches) / event.step_s)

    def _window(self, event: events.WindowDone) -> None:
        course = self._course(event.name, event.devices, event.measurement.batches)
        for replica in event.measurement.replicas:
            course.rows[replica.device].memory_bytes = replica.memory_peak_bytes

    def _turn(self, event: events.TurnDone) -> None:
        for part in event.parts:
            self._of_own(part.device, part.batch).memory_bytes = part.memory_peak_bytes

    def _whole_curve(self, device: Device) -> None:
        """Says a device's curve, as the summary has no room for it."""
        with self._lock:
            _, points = self._curves.pop(device.uuid, (device, {}))
        if points:
            self.say(
                "\n".join(
                    [
                        device_line(device),
                        *curve_lines(list(points.values()), self._console.width),
                        "",
                    ]
                )
            )

    def _queue(self, event: events.QueueSeen) -> None:
        counts = f"{len(event.running)} running, {event.waiting} waiting, {event.ended} ended"
        self._doing = (
            f"{counts}; about {format_duration(event.left_s)} left" if event.left_s else counts
        )
        self._lines = lambda width, height: running_lines(
            event.devices, event.running, width, height
        )

    def _course(
        self, name: str, devices: tuple[Device, ...], batches: tuple[int, ...]
    ) -> LiveSplit:
        """The course of a split; a new split, or one of other devices, replaces all before it."""
        # The same split without its pipeline: the screen shows it with the pipeline.
        if name == "held":
            return LiveSplit(devices, batches)
        self._lines = lambda width, height: joint_lines(self._joint, width, height)
        course = self._joint.get(name)
        if course is None or course.batches != batches or course.devices != devices:
            if not name or any(other.devices != devices for other in self._joint.values()):
                self._joint.clear()
            course = self._joint[name] = LiveSplit(devices, batches)
        return course

    def _of_own(self, device: Device, batch: int) -> DeviceRow:
        self._lines = lambda width, height: own_lines(list(self._own.values()), width, height)
        return self._own.setdefault(device.uuid, DeviceRow(device, batch))

    def _curve(self, device: Device) -> dict[int, CurvePoint]:
        self._lines = lambda width, height: probe_lines(
            [(device, list(points.values())) for device, points in self._curves.values() if points],
            width,
            height,
        )
        return self._curves.setdefault(device.uuid, (device, {}))[1]

    def say(self, lines: str) -> None:
        """Prints lines above the screen, where they stay."""
        self._console.print(Text(lines), soft_wrap=True)

    def _screen(self) -> Group:
        width, height = self._console.size
        with self._lock:
            head = header_lines(self._doing, self._remaining.short, width)
            return Group(*head, *self._lines(width, height - len(head) - 1))

    def close(self) -> None:
        """Leaves the terminal as it was."""
        self._live.stop()
