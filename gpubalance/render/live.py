"""The live screen while a command measures, as lines for a terminal of any width."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from rich.cells import cell_len
from rich.text import Text

from gpubalance.numbers.units import format_bytes, format_rate, format_seconds
from gpubalance.render.devices import state_text, throttled_text
from gpubalance.render.probe import curve_lines, device_line
from gpubalance.render.rates import per_s
from gpubalance.render.table import aligned, prose, shorten, sparkline
from gpubalance.results.probe import CurvePoint
from gpubalance.results.timing import Moment
from gpubalance.settings.device import Device

# What a step is, from left to right, with its sign and colour.
_STEP = {
    "compute, update": ("█", "green"),
    "waits": ("░", "yellow"),
    "sync": ("·", "dim"),
}
_LONGEST_BAR = 30
_SHORTEST_BAR = 8
_NAME_WIDTH = 22
_MOST_RATES = 60
_TOGETHER = 0.01
_BAR = "bar"
# The columns of the tables in the order in which they stand, and in that in which a narrow terminal
# keeps them.
_JOINT = ("device", "name", "batch", "samples/s", _BAR, "compute", "state", "memory")
OWN = ("alone", "at once")  # rates of a device with a model of its own
_OWN = ("device", "name", "batch", *OWN, "memory", "state")
_BY_WORTH = ("device", "batch", "samples/s", *OWN, "compute", "state", "memory", "name")
_WITHOUT_HEAD = ("name", "state")
_LEFT = ("device", "name")


@dataclass
class DeviceRow:
    """A device while it is measured, with its latest samples/s by the column; None is unknown."""

    device: Device
    batch: int
    compute_s: float | None = None
    update_s: float = 0.0
    memory_bytes: int | None = None
    gauges: Moment | None = None
    rates: dict[str, float] = field(default_factory=dict)

    @property
    def busy_s(self) -> float:
        """Compute and update."""
        return (self.compute_s or 0.0) + self.update_s


@dataclass
class LiveSplit:
    """A split while it is measured, with its last rates; None is unknown."""

    devices: Sequence[Device]
    batches: Sequence[int]
    step_s: float | None = None
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_RATES))

    def __post_init__(self) -> None:
        self.rows = [*map(DeviceRow, self.devices, self.batches)]


def _rate(name: str, row: DeviceRow) -> str:
    if name not in row.rates:
        return "…"
    return format_rate(row.rates[name])


def _compute(row: DeviceRow) -> str:
    if row.compute_s is None:
        return ""
    return format_seconds(row.compute_s)


def _memory(row: DeviceRow) -> str:
    if row.memory_bytes is None:
        return ""
    return format_bytes(row.memory_bytes)


_CELLS: Mapping[str, Callable[[DeviceRow], str]] = {
    "device": lambda row: row.device.label,
    "name": lambda row: shorten(row.device.name, _NAME_WIDTH),
    "batch": lambda row: str(row.batch),
    "compute": _compute,
    "memory": _memory,
    "state": lambda row: state_text(row.gauges),
    "samples/s": partial(_rate, "samples/s"),
    "alone": partial(_rate, "alone"),
    "at once": partial(_rate, "at once"),
}


def header_lines(text: str, left: str, width: int) -> list[Text]:
    """What is being done and how much is left, on as few lines as the width allows."""
    gap = width - cell_len(text) - cell_len(left)
    if left and gap >= 2:
        return [Text.assemble(text, " " * gap, (left, "dim"))]
    lines = [Text(line) for line in prose(text, width)]
    if left:
        lines.append(Text(left, "dim"))
    return lines


def joint_lines(splits: Mapping[str, LiveSplit], width: int, height: int) -> list[Text]:
    """The devices of a split, who waits for whom, and the total; also of the "even" split."""
    if "" not in splits:
        return []
    split = splits[""]
    max_rows = max(1, height - 6)
    lines = _table(split.rows, _JOINT, width, max_rows, partial(_bar, split))
    lines.append(_total_line(f"total {sum(split.batches)}", split.rates, width))
    even = splits.get("even")
    if even is not None and even.rates:
        batches = "/".join(map(str, even.batches))
        lines.append(_total_line(f"even split {batches}", even.rates, width))
    if split.rows[0].compute_s is not None:
        lines += map(Text, prose(_waiting(split), width))
        names = [
            Text.assemble(sign, (f" {name}", "dim")) for name, sign in _STEP.items()
        ]
        legend = Text("  ").join(names)
        if legend.cell_len <= width:
            lines.append(legend)
    return lines


def own_lines(rows: Sequence[DeviceRow], width: int, height: int) -> list[Text]:
    """A row for each device that trains a model of its own, as many as fit, and the sum at once."""
    rows = sorted(rows, key=lambda row: (row.device.host or "", row.device.index))
    lines = _table(rows, _OWN, width, max(1, height - 3))
    at_once = [row.rates["at once"] for row in rows if "at once" in row.rates]
    if at_once:
        lines.append(Text(shorten(f"at once {per_s(sum(at_once))}", width)))
    return lines


def _table(
    rows: Sequence[DeviceRow],
    order: Sequence[str],
    width: int,
    max_rows: int,
    bar: Callable[[DeviceRow, int], Text] | None = None,
) -> list[Text]:
    """The columns that fit, how many devices have no row, and which of the others are throttled.

    A bar takes what the other columns leave of a line.
    """
    shown = rows[:max_rows]
    left = width + 2  # no space after the last column
    if bar:
        left -= _SHORTEST_BAR + 2
    columns: dict[str, list[Text]] = {}
    for name in _BY_WORTH:
        head = "" if name in _WITHOUT_HEAD else name
        cells = [head] + [_CELLS[name](row) for row in shown]
        length = max(map(cell_len, cells))
        if name in order and any(cells[1:]) and length + 2 <= left:
            columns[name] = [
                Text(aligned(cell, length, left=name in _LEFT)) for cell in cells
            ]
            left -= length + 2
    if bar:
        room = min(_LONGEST_BAR, left + _SHORTEST_BAR)
        columns[_BAR] = [Text(" " * room)]
        columns[_BAR] += [bar(row, room) for row in shown]
    in_order = [columns[name] for name in order if name in columns]
    lines = [Text("  ").join(cells) for cells in zip(*in_order, strict=True)]
    lines[0].stylize("dim")
    if len(shown) < len(rows):
        lines.append(Text(f"… and {len(rows) - len(shown)} more devices", "dim"))
    for row in shown:
        text = throttled_text(row.device, row.gauges)
        lines += [Text(line, "yellow") for line in prose(text, width)]
    return lines


def _bar(split: LiveSplit, row: DeviceRow, width: int) -> Text:
    """The step from left to right: compute and update, wait for the slowest, the rest (sync)."""
    if row.compute_s is None or not split.step_s:
        return Text(" " * width)
    slowest_s = max(other.busy_s for other in split.rows)
    step_s = max(split.step_s, slowest_s)
    busy = round(width * row.busy_s / step_s)
    waiting = round(width * slowest_s / step_s) - busy
    lengths = (busy, waiting, width - busy - waiting)
    bar = Text()
    for (sign, colour), length in zip(_STEP.values(), lengths, strict=True):
        bar.append(sign * length, colour)
    return bar


def _waiting(split: LiveSplit) -> str:
    """Who waits for whom: `GPU:1 waits 90 ms of each step for GPU:0`."""
    if len(split.rows) < 2 or not split.step_s:
        return ""
    by_time = sorted((row.busy_s, row.device.label) for row in split.rows)
    (min_s, first), (max_s, last) = by_time[0], by_time[-1]
    if max_s - min_s <= _TOGETHER * split.step_s:
        return "they finish together"
    return f"{first} waits {format_seconds(max_s - min_s)} of each step for {last}"


def _total_line(name: str, rates: Sequence[float], width: int) -> Text:
    """`total 1584  2205 samples/s  ▅▆▅▆`, with as many of the last rates as fit."""
    rate = "…"
    if rates:
        rate = per_s(rates[-1])
    text = shorten(f"{name}  {rate}  ", width)
    room = max(0, min(_LONGEST_BAR, width - cell_len(text)))
    shown = list(rates)[max(0, len(rates) - room) :]
    return Text.assemble(text, (sparkline(shown), "cyan"))


def probe_lines(
    devices: Sequence[tuple[Device, Sequence[CurvePoint]]], width: int, height: int
) -> list[Text]:
    """The curve of each device that is being probed, with as many of its last rows as fit."""
    if not devices:
        return []
    room = max(1, (height - 3 * len(devices)) // len(devices))
    lines: list[Text] = []
    for device, points in devices:
        head, *rows = curve_lines(points, width)
        title = shorten(device_line(device), width)
        lines += [Text(), Text(title), Text(head, "dim")]
        lines += [Text(shorten(line, width)) for line in rows[-room:]]
    return lines
