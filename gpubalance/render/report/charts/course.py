"""Step time over the run; below it temperature, power, clocks and throttling of each device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gpubalance.numbers.stats import median
from gpubalance.numbers.units import format_seconds
from gpubalance.render.report.charts.chart import NARROW, Drawing
from gpubalance.render.report.charts.style import CHOSEN, EVEN, INK, colour, dashes, figure, legend, marker
from gpubalance.results.common import StepTime
from gpubalance.results.independent import OwnModel
from gpubalance.results.subject import Subject
from gpubalance.results.telemetry import Moment

_MOST_POINTS = 400
_HATCHES = ("////", "\\\\\\\\", "||||", "xxxx", "----")

Moments = dict[int, tuple[Moment, ...]]
_PANELS = {
    "temperature_c": "°C",
    "power_w": "power, W",
    "sm_clock_mhz": "SM, MHz",
    "memory_clock_mhz": "memory, MHz",
}


class Line(NamedTuple):
    """Timings of one thing; `filled` makes its marks filled and its median a solid line."""

    name: str
    times: StepTime
    colour: str
    marker: str
    filled: bool


def chart(subject: Subject) -> Drawing | str:
    """Timings over time. Needs something that was run, such as the run at the end of `balance`."""
    if subject.run is None and subject.independent is None and subject.layers is None:
        return "nothing was run: `gpubalance run` or `gpubalance balance` does"
    lines = [line for line in _lines(subject) if line.times.samples]
    if not lines:
        return "the result keeps no timings"
    return _text(subject, lines), lambda width: _draw(subject, lines, width)


def _lines(subject: Subject) -> Iterator[Line]:
    run = subject.run
    if run is not None:
        yield Line("chosen split", run.step_time_s, CHOSEN, "o", True)
        even = run.baselines.even
        if even is not None and even.step_time_s != run.step_time_s:
            yield Line("even split", even.step_time_s, EVEN, "s", False)
    if subject.layers is not None:
        yield Line("stages", subject.layers.step_time_s, CHOSEN, "o", True)
    for one in subject.independent.replicas if subject.independent is not None else ():
        label, look = subject.devices[one.device].label, (colour(one.device), marker(one.device))
        if one.step_time_s is not None:
            yield Line(f"{label} at once", one.step_time_s, *look, True)
        if one.solo_step_time_s is not None:
            yield Line(f"{label} alone", one.solo_step_time_s, *look, False)


def _moments(subject: Subject) -> Moments:
    told: dict[int, list[Moment]] = {}
    ran = subject.run or subject.independent
    parts = subject.layers.stages if subject.layers is not None else ran.replicas if ran is not None else ()
    for one in parts:
        for telemetry in (one.telemetry, one.solo_telemetry if isinstance(one, OwnModel) else None):
            if telemetry is not None and telemetry.course:
                told.setdefault(one.device, []).extend(telemetry.course)
    return {device: tuple(sorted(course, key=lambda moment: moment.at_s)) for device, course in told.items()}


def _text(subject: Subject, shown: Sequence[Line]) -> str:
    lines = []
    for name, times, *_ in shown:
        lines.append(
            f"{name[0].upper()}{name[1:]}: {len(times.samples)} timings from {format_seconds(min(times.samples))} to "
            f"{format_seconds(max(times.samples))}, median {format_seconds(times.median)}."
        )
    if len(shown) > 1:
        lines.append(f"{'The two' if subject.run else 'Alone and at once'} were measured in turns.")
    moments = _moments(subject)
    if moments:
        lines += [_throttled(subject.devices[i].label, course) for i, course in moments.items()]
    elif all(device.simulated for device in subject.devices):
        lines.append("Temperature, power, clocks and throttling are not under it: a simulated device has none.")
    else:
        lines.append("Temperature, power, clocks and throttling are not under it: the result does not keep them.")
    return " ".join(lines)


def _throttled(label: str, course: Sequence[Moment]) -> str:
    reasons = sorted({reason for moment in course for reason in moment.throttle_reasons or ()})
    if reasons:
        return f"{label} was throttled by {', '.join(reasons)}."
    known = any(moment.throttle_reasons is not None for moment in course)
    return f"{label} was not throttled." if known else f"{label} does not tell whether it was throttled."


def _draw(subject: Subject, lines: Sequence[Line], width: int) -> Figure:
    moments = _moments(subject)
    panels = [p for p in _PANELS if any(getattr(m, p) is not None for course in moments.values() for m in course)]
    throttled = [i for i, course in moments.items() if any(m.throttle_reasons for m in course)]
    heights = [2.4, *[1.1] * len(panels), *([0.25 + 0.3 * len(throttled)] if throttled else [])]
    narrow = width <= NARROW
    rows = len(lines) + len(moments)
    made, axes = figure(width, int(70 + 80 * sum(heights)) + 18 * (rows if narrow else -(-rows // 2)), heights)
    _draw_timings(axes[0], lines)
    for one, field in zip(axes[1:], panels, strict=False):
        _draw_panel(one, moments, field)
    if throttled:
        _draw_throttling(axes[-1], subject, moments, throttled)
    axes[-1].set_xlabel("time since the first timing began, s")
    handles: list[Artist] = []
    for line in lines:
        said = f"{line.name} (line: its median)"
        c, shape, inside = line.colour, line.marker, _inside(line)
        handles.append(Line2D([], [], color=c, marker=shape, markerfacecolor=inside, linestyle="none", label=said))
    handles += [
        Line2D([], [], color=colour(i), linestyle=dashes(i), marker=marker(i), label=subject.devices[i].label)
        for i in (moments if panels else ())
    ]
    legend(made, handles, 1 if narrow else 2)
    return made


def _draw_timings(axes: Axes, lines: Sequence[Line]) -> None:
    for line in lines:
        c, at, times = line.colour, np.array(line.times.at_s), np.array(line.times.samples) * 1e3
        if len(times) > _MOST_POINTS:
            at, low, middle, high = _binned(at, times)
            axes.fill_between(at, low, high, color=c, alpha=0.25, linewidth=0)
            axes.plot(at, middle, color=c, linewidth=1.2)
        else:
            shape, inside = line.marker, _inside(line)
            axes.plot(at, times, color=c, marker=shape, markersize=4.5, markerfacecolor=inside, linestyle="none")
        axes.axhline(line.times.median * 1e3, color=c, linewidth=1.0, linestyle="-" if line.filled else "--")
    axes.set_ylabel("step time, ms")
    bottom, top = axes.get_ylim()
    usual = lines[0].times.median * 1e3
    if top - bottom < 0.02 * usual:  # else noise of under one per cent looks like a mountain
        axes.set_ylim(min(bottom, 0.99 * usual), max(top, 1.01 * usual))


def _inside(line: Line) -> str:
    return line.colour if line.filled else "none"


def _binned(at: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, ...]:
    """The smallest, median and largest time of each bin, to draw many timings as a band."""
    bins = np.array_split(np.argsort(at, kind="stable"), _MOST_POINTS // 2)
    spread = np.array([np.percentile(times[b], (0, 50, 100)) for b in bins])
    return (np.array([at[b].mean() for b in bins]), *spread.T)


def _draw_panel(axes: Axes, moments: Moments, field: str) -> None:
    for i, course in moments.items():
        known = [(moment.at_s, found) for moment in course if (found := getattr(moment, field)) is not None]
        if known:
            at, values = zip(*known, strict=True)
            every = max(1, len(known) // 8)
            axes.plot(at, values, color=colour(i), linestyle=dashes(i), linewidth=1.4, marker=marker(i), markersize=4,
                      markevery=every)  # fmt: skip
    axes.set_ylabel(_PANELS[field])
    low, high = axes.get_ylim()
    if high - low < 2:
        axes.set_ylim(low - 1, high + 1)


def _draw_throttling(axes: Axes, subject: Subject, moments: Moments, throttled: Sequence[int]) -> None:
    for row, i in enumerate(throttled):
        spans = _spans(moments[i])
        axes.broken_barh(spans, (row - 0.35, 0.7), facecolor=colour(i), edgecolor=INK, linewidth=0.5,
                         hatch=_HATCHES[i % len(_HATCHES)])  # fmt: skip
    axes.set_yticks(range(len(throttled)), [subject.devices[i].label for i in throttled])
    axes.set_ylim(len(throttled) - 0.5, -0.5)
    axes.set_title("throttled")


def _spans(course: Sequence[Moment]) -> list[tuple[float, float]]:
    """(start, length) from each reading with a reason to the next reading, without the pauses between windows."""
    gaps = [after.at_s - before.at_s for before, after in pairwise(course)]
    usual = median(gaps) if gaps else 1.0
    lengths = [*(min(gap, 2 * usual) for gap in gaps), usual]
    return [(m.at_s, max(0.0, length)) for m, length in zip(course, lengths, strict=True) if m.throttle_reasons]
