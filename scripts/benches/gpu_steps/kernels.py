"""Reads what a profiler trace says of a device, by windows.

It reads TensorFlow's own file, without a plugin.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

_GPU_PLANE = "/device:GPU:"
_WINDOW = "window"
_STAMPS = 4


class Span(NamedTuple):
    """A begin and an end, in seconds of the trace's own time."""

    began_s: float
    ended_s: float


class Window(NamedTuple):
    """All devices' kernels during a host's call, and their copies to the host, in order of time."""

    kernels: tuple[Span, ...]
    to_host: tuple[Span, ...]


class Marks(NamedTuple):
    """A stamped step's times by its four copies to the host.

    `busy` is the part of its compute with kernels running.
    """

    compute_s: float
    step_s: float
    busy: float


def marks_of(window: Window) -> Marks | None:
    """The marks of a window; None if the trace does not show the copies of stamps.

    A step must copy nothing else to the host before its last stamp, which an unstamped window's
    number of copies shows.
    """
    if len(window.to_host) < _STAMPS or not window.kernels:
        return None
    began, computed, _, finished = (copy.began_s for copy in window.to_host[:_STAMPS])
    if not began < computed < finished:
        return None
    compute_s = computed - began
    return Marks(
        compute_s,
        finished - began,
        covered(window.kernels, began, computed) / compute_s,
    )


def idle_part(window: Window) -> float | None:
    """The part without kernels of the time from a window's first kernel to the end of its last.

    None if the window has no kernel.
    """
    if not window.kernels:
        return None
    began = window.kernels[0].began_s
    ended = max(kernel.ended_s for kernel in window.kernels)
    return 1 - covered(window.kernels, began, ended) / (ended - began)


def covered(spans: Iterable[Span], began_s: float, ended_s: float) -> float:
    """The seconds between these two moments in which at least one of the ordered spans ran."""
    total = 0.0
    until = began_s
    for span in spans:
        start = max(span.began_s, until)
        end = min(span.ended_s, ended_s)
        if end > start:
            total, until = total + end - start, end
    return total


def read_windows(folder: Path) -> list[Window]:
    """The windows that the host marked, in order, with what the devices did in each."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    spaces = [
        xplane_pb2.XSpace.FromString(path.read_bytes())
        for path in sorted(folder.rglob("*.xplane.pb"))
    ]
    planes = [plane for space in spaces for plane in space.planes]
    marks = sorted(
        span
        for plane in planes
        for name, span in _events(plane, "")
        if name.partition("#")[0] == _WINDOW
    )
    events = sorted(
        (span, name)
        for plane in planes
        if plane.name.startswith(_GPU_PLANE)
        for name, span in _events(plane, "Stream")
    )
    windows = []
    for mark in marks:
        inside = [
            (span, name)
            for span, name in events
            if mark.began_s <= span.began_s < mark.ended_s
        ]
        kernels = tuple(
            span for span, name in inside if not name.startswith(("Memcpy", "Memset"))
        )
        windows.append(
            Window(
                kernels,
                tuple(span for span, name in inside if name.startswith("MemcpyD2H")),
            )
        )
    return windows


def _events(plane: Any, lines: str) -> Iterable[tuple[str, Span]]:
    """The events of the plane's lines whose name begins with `lines`.

    CUPTI has a line for each stream.
    """
    for line in plane.lines:
        if line.name.startswith(lines):
            for event in line.events:
                began_s = line.timestamp_ns / 1e9 + event.offset_ps / 1e12
                name = plane.event_metadata[event.metadata_id].name
                yield name, Span(began_s, began_s + event.duration_ps / 1e12)
