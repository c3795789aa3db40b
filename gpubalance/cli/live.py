"""Tables that grow in place, on a terminal."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.live import Live
from rich.text import Text

from gpubalance.config import Device
from gpubalance.render.probe import curve_lines, device_line
from gpubalance.results.probe import CurvePoint


def can_redraw() -> bool:
    """Whether stderr is a terminal in which lines can be drawn anew."""
    console = Console(stderr=True)
    return sys.stderr.isatty() and console.is_terminal and not console.is_dumb_terminal


class LiveTables:
    """A table a device that is being probed. It goes when the device is done, as the summary has it again."""

    def __init__(self) -> None:
        self._points: dict[str, tuple[Device, dict[int, CurvePoint]]] = {}
        self._live = Live(console=Console(stderr=True, highlight=False), auto_refresh=False, transient=True)

    def add(self, device: Device, point: CurvePoint) -> None:
        """A row more."""
        self._points.setdefault(device.uuid, (device, {}))[1][point.batch] = point
        self._draw()

    def done(self, device: Device) -> None:
        """Takes a device's table away."""
        self._points.pop(device.uuid, None)
        self._draw()

    def say(self, text: str) -> None:
        """A line above the tables, which stays."""
        self._live.console.print(Text(text))

    def _draw(self) -> None:
        lines: list[str] = []
        for device, points in self._points.values():
            lines += ["", device_line(device), *curve_lines(list(points.values()))]
        if lines:
            self._live.start()
        self._live.update(Text("\n".join(lines), no_wrap=True), refresh=True)

    def close(self) -> None:
        """Leaves the terminal as it was."""
        self._live.stop()
