"""One step of a cut model, task by task: devices down, time across."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gpubalance.numbers.units import format_seconds
from gpubalance.render.report.charts.bars import draw_bar
from gpubalance.render.report.charts.chart import NARROW, Drawing
from gpubalance.render.report.charts.style import (
    BACKWARD,
    FORWARD,
    HATCHES,
    PAPER,
    TRANSFER,
    UPDATE,
    device_name,
    figure,
    legend,
)
from gpubalance.render.timeline import Span, spans_of
from gpubalance.results.layers import Layers
from gpubalance.results.subject import Subject

_COLOURS = {"forward": FORWARD, "backward": BACKWARD, "transfer": TRANSFER, "update": UPDATE}
_ROW_PX, _REST_PX, _BAR = 46, 76, 0.5
_NUMBERED_PX = 11  # the width of a bar that has room for its micro-batch's number


def chart(subject: Subject) -> Drawing | str:
    """The tasks of a step. Only for a cut model."""
    result = subject.layers
    if result is None:
        return ""
    return _text(subject, result), lambda width: _draw(subject, result, width)


def _text(subject: Subject, result: Layers) -> str:
    labels = ", ".join(subject.devices[stage.device].label for stage in result.stages)
    step = format_seconds(result.timeline.step_time_s)
    return (
        f"A usual step, {step}: what {labels} did, from the stamps of its tasks. "
        f"Numbers are those of the {result.micro_batches} micro-batches. Where nothing is drawn, a device had nothing "
        "to do: the bubble."
    )


def _draw(subject: Subject, result: Layers, width: int) -> Figure:
    made, (axes,) = figure(width, _ROW_PX * len(result.stages) + _REST_PX)
    step_s = result.timeline.step_time_s
    for row, stage in enumerate(result.stages):
        name = device_name(subject.devices[stage.device], width)
        axes.text(0.0, -row + 0.36, name, transform=axes.get_yaxis_transform(), ha="left", va="bottom")
        for span in spans_of(result, stage.device):
            _draw_span(axes, span, row, width / step_s)
    axes.set_xlim(0.0, 1.01e3 * step_s)
    axes.set_ylim(-len(result.stages) + 0.5, 0.95)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("time since the step began, ms")
    keys = [
        Patch(facecolor=colour, edgecolor=PAPER, hatch=HATCHES.get(colour, ""), label=name)
        for name, colour in _COLOURS.items()
    ]
    legend(made, keys, 2 if width <= NARROW else len(keys))
    return made


def _draw_span(axes: Axes, span: Span, row: int, px_per_s: float) -> None:
    colour, length_s = _COLOURS[span.kind], span.end_s - span.start_s
    draw_bar(axes, -row, 1e3 * span.start_s, 1e3 * length_s, colour, _BAR)
    if span.kind in ("forward", "backward") and length_s * px_per_s >= _NUMBERED_PX:
        middle = 1e3 * (span.start_s + span.end_s) / 2
        axes.text(middle, -row, str(span.micro_batch), ha="center", va="center", color=PAPER, fontsize=8)
