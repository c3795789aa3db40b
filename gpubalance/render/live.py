"""The live screen while a command measures, as lines for a terminal of any width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from gpubalance.numbers.units import format_bytes, format_rate, format_seconds
from gpubalance.render.probe import curve_lines, device_line
from gpubalance.render.sparkline import sparkline
from gpubalance.render.table import prose, shorten, table
from gpubalance.results.probe import CurvePoint
from gpubalance.results.telemetry import Gauges, throttling
from gpubalance.settings.device import Device

_COMPUTE, _WAIT, _REST = "█", "░", "·"
_STYLES = {_COMPUTE: "green", _WAIT: "yellow", _REST: "dim"}
_LONGEST_BAR, _SHORTEST_BAR = 30, 8
_NAME_WIDTH = 22
_TOGETHER = 0.01


@dataclass(frozen=True)
class LiveRow:
    """One device of the split that is being measured; None is not known yet."""

    label: str
    name: str
    batch: str
    throughput: float | None
    compute_s: float | None
    memory_bytes: int | None
    gauges: Gauges | None


@dataclass(frozen=True)
class LiveTotal:
    """All devices together: the last rates of the split, and of the even split beside it."""

    batch: int
    step_s: float | None
    rates: Sequence[float]
    even: str
    even_rates: Sequence[float]


def header_lines(text: str, left_s: float | None, width: int) -> list[Text]:
    """What is being done and about how long it will take, on as few lines as the width allows."""
    left = "" if left_s is None or left_s < 0 else f"about {_duration(left_s)} left"
    if not left:
        return [Text(line) for line in prose(text, width)]
    gap = width - len(text) - len(left)
    if gap >= 2:
        return [Text.assemble(text, " " * gap, (left, "dim"))]
    return [*map(Text, prose(text, width)), Text(left, "dim")]


def _duration(seconds: float) -> str:
    return f"{max(1, round(seconds))} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def joint_lines(rows: Sequence[LiveRow], total: LiveTotal, width: int, height: int) -> list[Text]:
    """The devices of a split, who waits for whom, and all together."""
    shown = rows[: max(1, height - 6)]
    lines = _table(shown, total, width)
    if len(shown) < len(rows):
        lines.append(Text(f"… and {len(rows) - len(shown)} more devices", "dim"))
    lines += [Text(line, "yellow") for row in shown for line in prose(_throttled(row), width)]
    lines.append(_total_line("total", str(total.batch), total.rates, width))
    if total.even_rates:
        lines.append(_total_line("even split", total.even, total.even_rates, width))
    if any(row.compute_s for row in rows):
        lines += [*map(Text, prose(waiting_text(rows, total.step_s), width)), *_legend(width)]
    return lines


_BEFORE, _AFTER = ("device", "name", "batch", "samples/s"), ("compute", "state", "memory")  # the bar
_BY_WORTH = ("device", "batch", "samples/s", "compute", "state", "memory", "name")


def _table(rows: Sequence[LiveRow], total: LiveTotal, width: int) -> list[Text]:
    """Leaves out the least important columns on a narrow terminal; the bar takes the rest of the line."""
    columns = {
        "device": ["device", *(row.label for row in rows)],
        "name": ["", *(shorten(row.name, _NAME_WIDTH) for row in rows)],
        "batch": ["batch", *(row.batch for row in rows)],
        "samples/s": ["samples/s", *("" if r.throughput is None else format_rate(r.throughput) for r in rows)],
        "compute": ["compute", *("" if r.compute_s is None else format_seconds(r.compute_s) for r in rows)],
        "memory": ["memory", *("" if r.memory_bytes is None else format_bytes(r.memory_bytes) for r in rows)],
        "state": ["", *(_state(row.gauges) for row in rows)],
    }
    kept: dict[str, list[str]] = {}
    left = width
    for name in _BY_WORTH:
        needed = max(map(len, columns[name])) + 2
        if any(columns[name][1:]) and needed + _SHORTEST_BAR <= left:
            kept[name] = columns[name]
            left -= needed
    bar = max(0, min(_LONGEST_BAR, left))
    before = _beside([kept[name] for name in _BEFORE if name in kept], rows, left=(0, 1) if "name" in kept else (0,))
    after = _beside([kept[name] for name in _AFTER if name in kept], rows)
    lines = [Text(f"{before[0]}{' ' * bar}  {after[0]}".rstrip(), "dim")]
    for row, start, end in zip(rows, before[1:], after[1:], strict=True):
        lines.append(Text.assemble(start, _bar(row, rows, total.step_s, bar), f"  {end}" if end else ""))
    return lines


def _beside(columns: Sequence[Sequence[str]], rows: Sequence[LiveRow], *, left: Sequence[int] = ()) -> list[str]:
    """The lines of some columns with their heads, all of one length, and two spaces where the bar may begin."""
    lines = table(list(zip(*columns, strict=True)), left=left) if columns else [""] * (len(rows) + 1)
    longest = max(map(len, lines))
    return [f"{line.ljust(longest)}  " if left else line for line in lines]


def _bar(row: LiveRow, rows: Sequence[LiveRow], step_s: float | None, width: int) -> Text:
    """The step from left to right: compute, wait for the slowest, the rest (sync)."""
    if row.compute_s is None or not step_s:
        return Text(" " * width)
    slowest = max(r.compute_s or 0.0 for r in rows)
    whole = max(step_s, slowest)
    compute = round(width * row.compute_s / whole)
    until = round(width * slowest / whole)
    return Text.assemble(
        *[
            (sign * n, _STYLES[sign])
            for sign, n in ((_COMPUTE, compute), (_WAIT, until - compute), (_REST, width - until))
        ]
    )


def _legend(width: int) -> list[Text]:
    parts = [(_COMPUTE, "compute"), (_WAIT, "waits"), (_REST, "sync")]
    text = Text("  ").join(Text.assemble((sign, _STYLES[sign]), (f" {name}", "dim")) for sign, name in parts)
    return [text] if text.cell_len <= width else []


def waiting_text(rows: Sequence[LiveRow], step_s: float | None) -> str:
    """Who waits for whom: `GPU:1 waits 90 ms of each step for GPU:0`."""
    known = [(row.compute_s, row.label) for row in rows if row.compute_s is not None]
    if len(known) < 2 or not step_s:
        return ""
    (least_s, first), (most_s, last) = min(known), max(known)
    if most_s - least_s <= _TOGETHER * step_s:
        return "they finish together"
    return f"{first} waits {format_seconds(most_s - least_s)} of each step for {last}"


def _state(gauges: Gauges | None) -> str:
    if gauges is None:
        return ""
    heat = [] if gauges.temperature_c is None else [f"{gauges.temperature_c} °C"]
    power = [] if gauges.power_mw is None else [f"{gauges.power_mw / 1000:.0f} W"]
    return " ".join([*heat, *power])


def _throttled(row: LiveRow) -> str:
    reasons = throttling([row.gauges.reasons]) if row.gauges and row.gauges.reasons else ()
    return f"{row.label} is throttled: {', '.join(reasons)}" if reasons else ""


def _total_line(name: str, batch: str, rates: Sequence[float], width: int) -> Text:
    """`total 1584  2205 samples/s  ▅▆▅▆` with as many of the last rates as there is room for."""
    rate = f"{format_rate(rates[-1])} samples/s" if rates else "…"
    text = shorten(f"{name} {batch}  {rate}  ", width)
    room = min(_LONGEST_BAR, width - len(text))
    return Text.assemble(text, (sparkline(rates[-room:]) if room > 0 else "", "cyan"))


def probe_lines(devices: Sequence[tuple[Device, Sequence[CurvePoint]]], width: int, height: int) -> list[Text]:
    """The curve of each device that is being probed, with as many of its last rows as there is room for."""
    if not devices:
        return []
    room = max(1, (height - 3 * len(devices)) // len(devices))
    lines: list[Text] = []
    for device, points in devices:
        last = sorted(points, key=lambda point: point.batch)
        table = curve_lines(last, width)
        lines += [Text(), Text(shorten(device_line(device), width)), Text(table[0], "dim")]
        lines += [Text(shorten(line, width)) for line in table[1:][-room:]]
    return lines
