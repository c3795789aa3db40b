"""The live screen for devices that each train a model of their own, as lines for a terminal of any width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.text import Text

from gpubalance.numbers.units import format_bytes, format_rate
from gpubalance.render.live import state_text, throttled_text
from gpubalance.render.table import prose, shorten, table
from gpubalance.results.telemetry import Gauges
from gpubalance.settings.device import Device

_NAME_WIDTH = 22
_WIDE = 70  # columns that a row with name and gauges needs


@dataclass
class OwnCourse:
    """A device while it is measured: its latest samples/s, under "alone" and "at once"."""

    device: Device
    batch: int
    rates: dict[str, float] = field(default_factory=dict)
    memory_bytes: int | None = None
    gauges: Gauges | None = None


def own_lines(courses: Sequence[OwnCourse], width: int, height: int) -> list[Text]:
    """A row for each device, as many as fit, and the sum at once."""
    shown = courses[: max(1, height - 3)]
    rows = [["device", "", "batch", "alone", "at once", "memory", ""], *map(_row, shown)]
    if width < _WIDE:
        rows = [[cell for place, cell in enumerate(row) if place not in (1, 6)] for row in rows]
    lines = [Text(shorten(line, width)) for line in table(rows, left=(0, 1) if width >= _WIDE else (0,))]
    lines[0].stylize("dim")
    if len(shown) < len(courses):
        lines.append(Text(f"… and {len(courses) - len(shown)} more devices", "dim"))
    told = [throttled_text(one.device, one.gauges) for one in shown]
    lines += [Text(line, "yellow") for text in told for line in prose(text, width)]
    at_once = [one.rates["at once"] for one in courses if "at once" in one.rates]
    if at_once:
        lines.append(Text(shorten(f"at once {format_rate(sum(at_once))} samples/s", width)))
    return lines


def _row(one: OwnCourse) -> list[str]:
    return [
        one.device.label,
        shorten(one.device.name, _NAME_WIDTH),
        str(one.batch),
        _rate(one.rates, "alone"),
        _rate(one.rates, "at once"),
        "" if one.memory_bytes is None else format_bytes(one.memory_bytes),
        state_text(one.gauges),
    ]


def _rate(rates: Mapping[str, float], name: str) -> str:
    return format_rate(rates[name]) if name in rates else "…"
