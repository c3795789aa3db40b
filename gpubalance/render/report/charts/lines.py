"""The line charts: throughput over batch size, and step time and sensors over the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from gpubalance.render.report.charts.chart import (
    CHOSEN,
    EVEN,
    INK,
    NARROW,
    Drawing,
    device_name,
    legend,
    look,
    new_figure,
)
from gpubalance.results.common import StepTime
from gpubalance.results.independent import Independent, OwnModel
from gpubalance.results.layers import Layers
from gpubalance.results.probe import DeviceProbe
from gpubalance.results.subject import ReportSubject
from gpubalance.results.timing import Moment
from gpubalance.settings.batch_split import pieces_text

_MODEL_POINTS = 120


def curves(subject: ReportSubject) -> Drawing | str:
    """The curves. Needs a probe: the result itself, or a probe of its devices."""
    if subject.probed:
        markers = "Points are measured, with their 95 % intervals"
        note = f"{markers}; lines are the step-time model that gpubalance plans with."
        return note, lambda width: _draw_curves(subject, width)
    if subject.kind == "probe":
        return "no batch size was measured"
    if subject.is_of_table:
        return "the plan is from a table of step times, which has them"
    return (
        "it is in the probe of these devices, which is not stored here: give the "
        "probe's file too"
    )


def _draw_curves(subject: ReportSubject, width: int) -> Figure:
    height = 360
    ticks = 10
    if width <= NARROW:
        height = 300
        ticks = 6
    figure, (axes,) = new_figure(width, height)
    axes.set_xscale("log", base=2)
    has_limit = False
    for number, probe in enumerate(subject.probes):
        if probe is None or not probe.curve:
            continue
        if probe.batch_limit and probe.batch_limit.fails:
            has_limit = True
        name = f"{device_name(subject.devices[number], width)}: {_limit_text(probe)}"
        micro = 0
        if subject.split is not None:
            batch = subject.split.batches[number]
            micro = subject.split.micro_batches[number]
            chosen = "left out"
            if batch:
                chosen = f"chosen {pieces_text(batch, micro)}"
            name += f", {chosen}"
        _draw_device(axes, number, probe, micro, name)
    if has_limit:
        axes.plot([], [], color=INK, linestyle=":", linewidth=1.8, label="batch limit")
    if subject.split is not None:
        ring: dict[str, Any] = {"markersize": 12, "markerfacecolor": "none"}
        axes.plot([], [], "o", color=INK, **ring, label="chosen batch")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda batch, _: f"{batch:g}"))
    axes.set_xlabel("batch, samples")
    axes.set_ylabel("throughput, samples/s")
    legend(figure, 1)
    return figure


def _limit_text(probe: DeviceProbe) -> str:
    limit = probe.batch_limit
    if limit is None or limit.fits is None:
        return "limit not known"
    if limit.fails is not None:
        return f"limit {limit.fits}"
    if limit.plateau is not None:
        return f"searched up to {limit.fits}"
    return f"no limit found up to {limit.fits}"


def _draw_device(
    axes: Axes, number: int, probe: DeviceProbe, chosen: int, name: str
) -> None:
    points = sorted(probe.curve, key=lambda point: point.batch)
    batches = [point.batch for point in points]
    rates = [point.throughput.median for point in points]
    style = look(number)
    colour = style["color"]
    # Every other device's marks are larger and hollow, so that both of two equal ones are seen.
    markers: dict[str, Any] = {"markersize": 5, "markerfacecolor": colour}
    if number % 2:
        markers = {"markersize": 7, "markerfacecolor": "none"}
    limit = probe.batch_limit
    maximum = None
    if limit is not None and limit.fails is not None:
        maximum = limit.fits
    model = probe.step_time_model
    if model is not None:
        largest = max([*batches, chosen, maximum or 0])
        at = np.geomspace(batches[0], largest, _MODEL_POINTS)
        times = np.array([model.planned.measured_s(float(batch)) for batch in at])
        known = times > 0
        line: dict[str, Any] = {"linestyle": style["linestyle"], "linewidth": 1.6}
        axes.plot(at[known], at[known] / times[known], color=colour, **line)
    axes.plot([], [], **style, **markers, linewidth=1.6, label=name)
    intervals = [
        point.throughput.ci95 or (point.throughput.median,) * 2 for point in points
    ]
    low, high = np.transpose(intervals)
    markers |= {
        **style,
        "linestyle": "none",
        "elinewidth": 1.2,
        "capsize": 2,
        "zorder": 3,
    }
    errors = np.clip([rates - low, high - rates], 0.0, None)
    axes.errorbar(batches, rates, yerr=errors, **markers)
    if maximum is not None:
        axes.axvline(maximum, color=colour, linestyle=":", linewidth=1.8, ymax=0.97)
    if chosen:
        rate = float(np.interp(chosen, batches, rates))
        if model is not None and model.planned.measured_s(chosen) > 0:
            rate = chosen / model.planned.measured_s(chosen)
        ring: dict[str, Any] = {
            "markersize": 13,
            "markerfacecolor": "none",
            "markeredgewidth": 1.8,
        }
        axes.plot(chosen, rate, marker="o", color=colour, zorder=4, **ring)


_MOST_POINTS = 400
_PANELS = {
    "temperature_c": "°C",
    "power_w": "power, W",
    "sm_clock_mhz": "SM, MHz",
    "memory_clock_mhz": "memory, MHz",
    "throttle_reasons": "throttled",
}
Courses = Mapping[int, Sequence[Moment]]  # by device
Readings = dict[int, list[tuple[float, float]]]  # by device: when, and the value


class TimingLine(NamedTuple):
    """Timings of one thing; `filled` makes its marks filled and its median a solid line."""

    name: str
    times: StepTime
    colour: str
    marker: str
    filled: bool = True


def course(subject: ReportSubject) -> Drawing | str:
    """Timings over time. Needs something that was run, such as the run at the end of `balance`."""
    if subject.is_of_table:
        return "nothing was run: the plan is from a table of step times"
    if not subject.ran:
        return "nothing was run: use `gpubalance run` or `gpubalance balance`"
    lines = [line for line in _lines(subject) if line.times.samples]
    if not lines:
        return "the result keeps no timings"
    courses = _courses(subject)
    note = ""
    if not courses:
        why = "the result does not keep them"
        if subject.devices[0].simulated:
            why = "a simulated device has none"
        note = f"Temperature, power, clocks and throttling are missing: {why}."
    labels = [device.label for device in subject.devices]
    return note, lambda width: _draw_course(lines, courses, labels, width)


def _courses(subject: ReportSubject) -> Courses:
    """The readings of the devices that have any, in order of time."""
    courses: dict[int, Sequence[Moment]] = {}
    for part in subject.ran:
        moments: list[Moment] = []
        for telemetry in (part.telemetry, getattr(part, "solo_telemetry", None)):
            if telemetry is not None:
                moments += telemetry.course
        if moments:
            courses[part.device] = sorted(moments, key=lambda moment: moment.at_s)
    return courses


def _lines(subject: ReportSubject) -> Iterator[TimingLine]:
    run = subject.run
    result = subject.result
    if run is not None:
        yield TimingLine("chosen split", run.step_time_s, CHOSEN, "o")
        even = run.baselines.even
        if even is not None and even.step_time_s != run.step_time_s:
            yield TimingLine("even split", even.step_time_s, EVEN, "s", filled=False)
    elif isinstance(result, Layers):
        yield TimingLine("stages", result.step_time_s, CHOSEN, "o")
    elif isinstance(result, Independent):
        for replica in result.replicas:
            yield from _own_lines(replica, result.label(replica.device))


def _own_lines(replica: OwnModel, label: str) -> Iterator[TimingLine]:
    style = look(replica.device)
    colour = style["color"]
    marker = style["marker"]
    if replica.step_time_s is not None:
        yield TimingLine(f"{label} at once", replica.step_time_s, colour, marker)
    if replica.solo_step_time_s is not None:
        times = replica.solo_step_time_s
        yield TimingLine(f"{label} alone", times, colour, marker, filled=False)


def _draw_course(
    lines: Sequence[TimingLine], courses: Courses, labels: Sequence[str], width: int
) -> Figure:
    readings = {name: _readings(courses, name) for name in _PANELS}
    panels = [name for name in _PANELS if readings[name]]
    heights = [2.4, *[1.1] * len(panels)]
    figure, axes = new_figure(width, 70 + 80 * sum(heights), heights)
    _draw_timings(axes[0], lines)
    for panel, name in zip(axes[1:], panels, strict=True):
        _draw_panel(panel, readings[name], labels)
        panel.set_ylabel(_PANELS[name])
    axes[-1].set_xlabel("time since the first timing began, s")
    columns = 1 if width <= NARROW else 2
    legend(figure, columns)
    return figure


def _readings(courses: Courses, name: str) -> Readings:
    """The readings of that name; of throttling, how many reasons there were."""
    readings: Readings = {}
    for device, moments in courses.items():
        for moment in moments:
            value = getattr(moment, name)
            if isinstance(value, tuple):
                value = len(value)
            if value is not None:
                readings.setdefault(device, []).append((moment.at_s, value))
    return readings


def _draw_timings(axes: Axes, lines: Sequence[TimingLine]) -> None:
    for name, step_time, colour, marker, filled in lines:
        at = np.array(step_time.at_s)
        times = np.array(step_time.samples) * 1e3
        label = f"{name} (line: its median)"
        if len(times) > _MOST_POINTS:
            at, low, middle, high = _binned(at, times)
            axes.fill_between(at, low, high, color=colour, alpha=0.25, linewidth=0)
            axes.plot(at, middle, color=colour, linewidth=1.2, label=label)
        else:
            style: dict[str, Any] = {"markersize": 4.5, "color": colour, "label": label}
            axes.plot(
                at, times, marker, markerfacecolor=colour if filled else "none", **style
            )
        median_style = "-" if filled else "--"
        axes.axhline(
            step_time.median * 1e3, color=colour, linewidth=1.0, linestyle=median_style
        )
    axes.set_ylabel("step time, ms")
    bottom, top = axes.get_ylim()
    usual = lines[0].times.median * 1e3
    # Else noise of under one per cent looks like a mountain
    if top - bottom < 0.02 * usual:
        axes.set_ylim(min(bottom, 0.99 * usual), max(top, 1.01 * usual))


def _binned(at: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, ...]:
    """The smallest, median and largest time of each bin, to draw many timings as a band."""
    bins = np.array_split(np.argsort(at, kind="stable"), _MOST_POINTS // 2)
    spread = np.array([np.percentile(times[b], (0, 50, 100)) for b in bins])
    return (np.array([at[b].mean() for b in bins]), *spread.T)


def _draw_panel(axes: Axes, readings: Readings, labels: Sequence[str]) -> None:
    for device, points in readings.items():
        at, values = zip(*points, strict=True)
        every = max(1, len(points) // 8)
        style = {**look(device), "linewidth": 1.4, "markersize": 4, "markevery": every}
        axes.plot(at, values, **style, label=labels[device])
    low, high = axes.get_ylim()
    if high - low < 2:
        axes.set_ylim(low - 1, high + 1)
