"""Step time over the run; below it temperature, power, clocks and throttling of each device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpubalance.render.report.charts.chart import Drawing
from gpubalance.render.report.charts.style import CHOSEN, EVEN, NARROW, figure, legend, look
from gpubalance.results.common import StepTime
from gpubalance.results.independent import Independent
from gpubalance.results.layers import Layers
from gpubalance.results.subject import ReportSubject
from gpubalance.results.telemetry import Moment

_MOST_POINTS = 400
_PANELS = {
    "temperature_c": "°C",
    "power_w": "power, W",
    "sm_clock_mhz": "SM, MHz",
    "memory_clock_mhz": "memory, MHz",
    "throttle_reasons": "throttled",
}
Courses = Mapping[int, Sequence[Moment]]  # by device


class TimingLine(NamedTuple):
    """Timings of one thing; `filled` makes its marks filled and its median a solid line."""

    name: str
    times: StepTime
    colour: str
    marker: str
    filled: bool = True


def course(subject: ReportSubject) -> Drawing | str:
    """Timings over time. Needs something that was run, such as the run at the end of `balance`."""
    if not subject.ran:
        return "nothing was run: `gpubalance run` or `gpubalance balance` does"
    lines = [line for line in _lines(subject) if line.times.samples]
    if not lines:
        return "the result keeps no timings"
    courses: dict[int, list[Moment]] = {}
    for one in subject.ran:
        for told in (one.telemetry, getattr(one, "solo_telemetry", None)):
            courses.setdefault(one.device, []).extend(told.course if told else ())
    known = {
        i: sorted(moments, key=lambda moment: moment.at_s)
        for i, moments in courses.items()
        if moments
    }
    labels = {i: subject.label(i) for i in known}
    why = (
        "a simulated device has none"
        if subject.devices[0].simulated
        else "the result does not keep them"
    )
    note = "" if known else f"Temperature, power, clocks and throttling are not under it: {why}."
    return note, lambda width: _draw(lines, known, labels, width)


def _lines(subject: ReportSubject) -> Iterator[TimingLine]:
    if (run := subject.run) is not None:
        yield TimingLine("chosen split", run.step_time_s, CHOSEN, "o")
        even = run.baselines.even
        if even is not None and even.step_time_s != run.step_time_s:
            yield TimingLine("even split", even.step_time_s, EVEN, "s", filled=False)
    result = subject.result
    if isinstance(result, Layers):
        yield TimingLine("stages", result.step_time_s, CHOSEN, "o")
    for one in result.replicas if isinstance(result, Independent) else ():
        label, style = subject.label(one.device), look(one.device)
        for how, times in (("at once", one.step_time_s), ("alone", one.solo_step_time_s)):
            if times is not None:
                yield TimingLine(
                    f"{label} {how}", times, style["color"], style["marker"], how == "at once"
                )


def _draw(
    lines: Sequence[TimingLine], courses: Courses, labels: Mapping[int, str], width: int
) -> Figure:
    panels = [
        name
        for name in _PANELS
        if any(_value(m, name) is not None for one in courses.values() for m in one)
    ]
    heights = [2.4, *[1.1] * len(panels)]
    made, axes = figure(width, 70 + 80 * sum(heights), heights)
    _draw_timings(axes[0], lines)
    for panel, name in zip(axes[1:], panels, strict=True):
        _draw_panel(panel, courses, name, labels)
    axes[-1].set_xlabel("time since the first timing began, s")
    legend(made, 1 if width <= NARROW else 2)
    return made


def _value(moment: Moment, name: str) -> float | None:
    """A reading; of throttling, how many reasons there were."""
    value = getattr(moment, name)
    return len(value) if isinstance(value, tuple) else value


def _draw_timings(axes: Axes, lines: Sequence[TimingLine]) -> None:
    for name, kept, colour, marker, filled in lines:
        at, times, label = (
            np.array(kept.at_s),
            np.array(kept.samples) * 1e3,
            f"{name} (line: its median)",
        )
        if len(times) > _MOST_POINTS:
            at, low, middle, high = _binned(at, times)
            axes.fill_between(at, low, high, color=colour, alpha=0.25, linewidth=0)
            axes.plot(at, middle, color=colour, linewidth=1.2, label=label)
        else:
            inside = colour if filled else "none"
            axes.plot(
                at, times, marker, color=colour, markersize=4.5, markerfacecolor=inside, label=label
            )
        axes.axhline(
            kept.median * 1e3, color=colour, linewidth=1.0, linestyle="-" if filled else "--"
        )
    axes.set_ylabel("step time, ms")
    bottom, top = axes.get_ylim()
    usual = lines[0].times.median * 1e3
    if top - bottom < 0.02 * usual:  # else noise of under one per cent looks like a mountain
        axes.set_ylim(min(bottom, 0.99 * usual), max(top, 1.01 * usual))


def _binned(at: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, ...]:
    """The smallest, median and largest time of each bin, to draw many timings as a band."""
    bins = np.array_split(np.argsort(at, kind="stable"), _MOST_POINTS // 2)
    spread = np.array([np.percentile(times[b], (0, 50, 100)) for b in bins])
    return (np.array([at[b].mean() for b in bins]), *spread.T)


def _draw_panel(axes: Axes, courses: Courses, name: str, labels: Mapping[int, str]) -> None:
    for i, moments in courses.items():
        told = [
            (moment.at_s, value)
            for moment in moments
            if (value := _value(moment, name)) is not None
        ]
        if told:
            every = max(1, len(told) // 8)
            at, values = zip(*told, strict=True)
            style = {**look(i), "linewidth": 1.4, "markersize": 4, "markevery": every}
            axes.plot(at, values, **style, label=labels[i])
    axes.set_ylabel(_PANELS[name])
    low, high = axes.get_ylim()
    if high - low < 2:
        axes.set_ylim(low - 1, high + 1)
