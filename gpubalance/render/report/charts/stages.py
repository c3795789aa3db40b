"""A step of a cut model as bars: each device's forward, backward, transfer, update and bubble add up to it."""

from __future__ import annotations

from matplotlib.figure import Figure

from gpubalance.numbers.units import format_percent, format_seconds
from gpubalance.render.layers import blocks_text, times_of
from gpubalance.render.report.charts.bars import Key, Row, draw_rows
from gpubalance.render.report.charts.chart import Drawing
from gpubalance.render.report.charts.style import BACKWARD, BUBBLE, FORWARD, TRANSFER, UPDATE, device_name
from gpubalance.results.layers import Layers
from gpubalance.results.subject import Subject

_KEYS = (
    Key("forward", FORWARD),
    Key("backward", BACKWARD),
    Key("transfer", TRANSFER),
    Key("update", UPDATE),
    Key("bubble", BUBBLE),
)


def chart(subject: Subject) -> Drawing | str:
    """The parts of a step as bars. Only for a cut model."""
    result = subject.layers
    if result is None:
        return ""
    return _text(subject, result), lambda width: _draw(subject, result, width)


def _text(subject: Subject, result: Layers) -> str:
    told = []
    for stage in result.stages:
        parts = zip((key.name for key in _KEYS), times_of(stage), strict=True)
        parts_text = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in parts)
        told.append(f"{subject.devices[stage.device].label}, blocks {blocks_text(stage)}: {parts_text}.")
    bubble, bound = format_percent(result.bubble, 1), format_percent(result.bubble_bound, 1)
    return f"{' '.join(told)} On average {bubble} of a step is bubble and transfer; at best it is {bound}."


def _draw(subject: Subject, result: Layers, width: int) -> Figure:
    rows = []
    for stage in result.stages:
        left = f"{device_name(subject.devices[stage.device], width)}, blocks {blocks_text(stage)}"
        busy = format_percent(stage.busy_s / result.step_time_s.median)
        pieces = tuple((key, 1e3 * max(0.0, one)) for key, one in zip(_KEYS, times_of(stage), strict=True))
        rows.append(Row(left, f"works {busy}", pieces))
    return draw_rows(rows, width, "time in a step, ms", _KEYS)
