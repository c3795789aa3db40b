"""The live screen while a command measures, as lines for a terminal of any width."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from rich.text import Text

from gpubalance.numbers.units import format_bytes, format_rate, format_seconds
from gpubalance.render.probe import curve_lines, device_line
from gpubalance.render.rates import per_s
from gpubalance.render.table import prose, shorten, sparkline
from gpubalance.results.probe import CurvePoint
from gpubalance.results.telemetry import Moment, Telemetry
from gpubalance.settings.device import Device

# What a step is, from left to right, with its sign and colour.
_STEP = {"compute, update": ("█", "green"), "waits": ("░", "yellow"), "sync": ("·", "dim")}
_LONGEST_BAR, _SHORTEST_BAR = 30, 8
_NAME_WIDTH = 22
_KEPT = 60  # rates
_TOGETHER = 0.01
_BAR = "bar"
# The columns of a table in the order in which they stand, and in that in which a narrow terminal keeps them.
_JOINT = ("device", "name", "batch", "samples/s", _BAR, "compute", "state", "memory")
_JOINT_BY_WORTH = ("device", "batch", "samples/s", "compute", "state", "memory", "name")
_WITHOUT_HEAD, _LEFT = ("name", "state"), ("device", "name")


@dataclass
class Course:
    """A split while it is measured: its last rates, and the times of its stamped steps. Empty or None is unknown."""

    devices: Sequence[Device]
    batches: Sequence[int]
    step_s: float | None = None
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    compute_s: Sequence[float] = ()
    update_s: Sequence[float] = ()
    memory_bytes: Sequence[int | None] = ()
    gauges: Sequence[Moment | None] = ()

    @property
    def busy_s(self) -> list[float]:
        """Each device's compute and update."""
        return [compute_s + update_s for compute_s, update_s in zip(self.compute_s, self.update_s, strict=True)]


@dataclass
class OwnCourse:
    """A device with a model of its own while it is measured: its latest samples/s, under "alone" and "at once"."""

    names: ClassVar = ("alone", "at once")
    device: Device
    batch: int
    rates: dict[str, float] = field(default_factory=dict)
    memory_bytes: int | None = None
    gauges: Moment | None = None


_OWN = OwnCourse.names


def header_lines(text: str, left: str, width: int) -> list[Text]:
    """What is being done and how much is left, on as few lines as the width allows."""
    if not left:
        return [Text(line) for line in prose(text, width)]
    gap = width - len(text) - len(left)
    if gap >= 2:
        return [Text.assemble(text, " " * gap, (left, "dim"))]
    return [*map(Text, prose(text, width)), Text(left, "dim")]


def joint_lines(courses: Mapping[str, Course], width: int, height: int) -> list[Text]:
    """The devices of a split, who waits for whom, and the total; also the "even" split once it is measured."""
    if "" not in courses:
        return []
    course, even = courses[""], courses.get("even")
    shown = max(1, height - 6)
    lines = [*_joint_table(course, shown, width), *_beside(course.devices, course.gauges, shown, width)]
    lines.append(_total_line(f"total {sum(course.batches)}", course.rates, width))
    if even is not None and even.rates:
        lines.append(_total_line(f"even split {'/'.join(map(str, even.batches))}", even.rates, width))
    if course.compute_s:
        lines += map(Text, prose(_waiting(course), width))
        legend = Text("  ").join(Text.assemble(sign, (f" {name}", "dim")) for name, sign in _STEP.items())
        lines += [legend] if legend.cell_len <= width else []
    return lines


def _joint_table(course: Course, shown: int, width: int) -> list[Text]:
    """The devices, each with its step as a bar, which takes the rest of the line."""
    step_s = course.step_s
    columns = {
        **_columns(course.devices, course.batches, course.memory_bytes, course.gauges),
        "samples/s": [format_rate(batch / step_s) for batch in course.batches] if step_s else [],
        "compute": list(map(format_seconds, course.compute_s)),
    }
    kept = _fitting(columns, _JOINT_BY_WORTH, shown, width - _SHORTEST_BAR)
    room = max(0, min(_LONGEST_BAR, width - sum(len(cells[0]) + 2 for cells in kept.values())))
    kept[_BAR] = [Text(" " * room), *(_bar(course, device, room) for device in range(len(course.devices)))][: shown + 1]
    return _rows(kept, _JOINT)


def _rows(kept: Mapping[str, Sequence[Text]], order: Sequence[str]) -> list[Text]:
    rows = zip(*(kept[name] for name in order if name in kept), strict=True)
    head, *lines = [Text("  ").join(cells) for cells in rows]
    head.stylize("dim")
    return [head, *lines]


def own_lines(courses: Sequence[OwnCourse], width: int, height: int) -> list[Text]:
    """A row for each device that trains a model of its own, as many as fit, and the sum at once."""
    courses = sorted(courses, key=lambda one: (one.device.host or "", one.device.index))
    shown = max(1, height - 3)
    devices, gauges = [one.device for one in courses], [one.gauges for one in courses]
    columns = _columns(devices, [one.batch for one in courses], [one.memory_bytes for one in courses], gauges)
    for name in _OWN:
        columns[name] = [format_rate(one.rates[name]) if name in one.rates else "…" for one in courses]
    by_worth = ("device", "batch", *_OWN, "memory", "name", "state")
    kept = _fitting(columns, by_worth, shown, width + 2)  # no space after the last one
    lines = _rows(kept, ("device", "name", "batch", *_OWN, "memory", "state"))
    lines += _beside(devices, gauges, shown, width)
    at_once = [one.rates["at once"] for one in courses if "at once" in one.rates]
    return [*lines, Text(shorten(f"at once {per_s(sum(at_once))}", width))] if at_once else lines


def _columns(
    devices: Sequence[Device],
    batches: Sequence[int],
    memory: Sequence[int | None],
    gauges: Sequence[Moment | None],
) -> dict[str, list[str]]:
    return {
        "device": [device.label for device in devices],
        "name": [shorten(device.name, _NAME_WIDTH) for device in devices],
        "batch": list(map(str, batches)),
        "memory": ["" if size is None else format_bytes(size) for size in memory],
        "state": list(map(state_text, gauges)),
    }


def _beside(devices: Sequence[Device], gauges: Sequence[Moment | None], shown: int, width: int) -> list[Text]:
    """How many devices have no row, and which of those that have one are throttled."""
    more = [Text(f"… and {len(devices) - shown} more devices", "dim")] if shown < len(devices) else []
    throttled = map(throttled_text, devices[:shown], gauges[:shown])
    return [*more, *(Text(line, "yellow") for text in throttled for line in prose(text, width))]


def _fitting(
    columns: Mapping[str, Sequence[str]], by_worth: Sequence[str], shown: int, width: int
) -> dict[str, list[Text]]:
    """The columns that fit, each with its head and as many cells as are shown, all of one length."""
    kept: dict[str, list[Text]] = {}
    for name in by_worth:
        cells = ["" if name in _WITHOUT_HEAD else name, *columns[name][:shown]]
        length = max(map(len, cells))
        if any(cells[1:]) and length + 2 <= width:
            kept[name] = [Text(cell.ljust(length) if name in _LEFT else cell.rjust(length)) for cell in cells]
            width -= length + 2
    return kept


def _bar(course: Course, device: int, width: int) -> Text:
    """The step from left to right: compute and update, wait for the slowest, the rest (sync)."""
    if not course.compute_s or not course.step_s:
        return Text(" " * width)
    slowest = max(course.busy_s)
    whole = max(course.step_s, slowest)
    busy, until = (round(width * seconds / whole) for seconds in (course.busy_s[device], slowest))
    lengths = (busy, until - busy, width - until)
    return Text.assemble(*((sign * n, colour) for (sign, colour), n in zip(_STEP.values(), lengths, strict=True)))


def _waiting(course: Course) -> str:
    """Who waits for whom: `GPU:1 waits 90 ms of each step for GPU:0`."""
    if len(course.busy_s) < 2 or not course.step_s:
        return ""
    known = [(busy_s, device.label) for busy_s, device in zip(course.busy_s, course.devices, strict=True)]
    (least_s, first), (most_s, last) = min(known), max(known)
    if most_s - least_s <= _TOGETHER * course.step_s:
        return "they finish together"
    return f"{first} waits {format_seconds(most_s - least_s)} of each step for {last}"


def state_text(gauges: Moment | Telemetry | None) -> str:
    """`83 °C 220 W`, as far as NVML gives them."""
    if gauges is None:
        return ""
    heat = "" if gauges.temperature_c is None else f"{gauges.temperature_c} °C"
    power = "" if gauges.power_w is None else f"{gauges.power_w:.0f} W"
    return " ".join(filter(None, (heat, power)))


def throttled_text(device: Device, gauges: Moment | None) -> str:
    """`GPU:0 is throttled: power cap`; empty if it is not."""
    reasons = (gauges and gauges.throttle_reasons) or ()
    return f"{device.label} is throttled: {', '.join(reasons)}" if reasons else ""


def _total_line(name: str, rates: Sequence[float], width: int) -> Text:
    """`total 1584  2205 samples/s  ▅▆▅▆`, with as many of the last rates as fit."""
    rate = f"{per_s(rates[-1])}" if rates else "…"
    text = shorten(f"{name}  {rate}  ", width)
    room = max(0, min(_LONGEST_BAR, width - len(text)))
    return Text.assemble(text, (sparkline(list(rates)[-room:] if room else []), "cyan"))


def probe_lines(devices: Sequence[tuple[Device, Sequence[CurvePoint]]], width: int, height: int) -> list[Text]:
    """The curve of each device that is being probed, with as many of its last rows as fit."""
    if not devices:
        return []
    room = max(1, (height - 3 * len(devices)) // len(devices))
    lines: list[Text] = []
    for device, points in devices:
        head, *rows = curve_lines(points, width)
        lines += [Text(), Text(shorten(device_line(device), width)), Text(head, "dim")]
        lines += [Text(shorten(line, width)) for line in rows[-room:]]
    return lines
