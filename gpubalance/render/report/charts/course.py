"""Step time over the run; under it temperature, power, clocks and throttling of each device."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from gpubalance.numbers.stats import median
from gpubalance.numbers.units import format_seconds
from gpubalance.render.report.charts.chart import NARROW, Drawing
from gpubalance.render.report.charts.style import CHOSEN, EVEN, INK, colour, dashes, figure, legend, marker
from gpubalance.render.report.subject import Subject
from gpubalance.results.run import Measurement, Run
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


def chart(subject: Subject) -> Drawing | str:
    """Needs a run, or the run that `balance` ended with."""
    run = subject.run
    if run is None:
        return "nothing was run: `gpubalance run` or `gpubalance balance` does"
    if not run.step_time_s.samples:
        return "the result keeps no timings"
    return _text(subject, run), lambda width: _draw(subject, run, width)


def _series(run: Run) -> list[tuple[str, Run | Measurement, str, str]]:
    even = run.baselines.even
    shown: list[tuple[str, Run | Measurement, str, str]] = [("chosen split", run, CHOSEN, "o")]
    if even is not None and even.step_time_s != run.step_time_s and even.step_time_s.samples:
        shown.append(("even split", even, EVEN, "s"))
    return shown


def _moments(run: Run) -> Moments:
    return {r.device: r.telemetry.course for r in run.replicas if r.telemetry is not None and r.telemetry.course}


def _timed(run: Run) -> bool:
    return all(one.step_time_s.at_s is not None for _, one, _, _ in _series(run))


def _text(subject: Subject, run: Run) -> str:
    lines = []
    for name, one, _, _ in _series(run):
        times = one.step_time_s
        lines.append(
            f"{name.capitalize()}: {len(times.samples)} timings from {format_seconds(min(times.samples))} to "
            f"{format_seconds(max(times.samples))}, median {format_seconds(times.median)}."
        )
    if len(_series(run)) > 1:
        lines.append("The two were measured in turns.")
    if not _timed(run):
        lines.append("This result does not say when each timing ended, so they are in the order of their numbers.")
    moments = _moments(run)
    if moments and _timed(run):
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


def _draw(subject: Subject, run: Run, width: int) -> Figure:
    moments = _moments(run) if _timed(run) else {}
    panels = [p for p in _PANELS if any(getattr(m, p) is not None for course in moments.values() for m in course)]
    throttled = [i for i, course in moments.items() if any(m.throttle_reasons for m in course)]
    heights = [2.4, *[1.1] * len(panels), *([0.25 + 0.3 * len(throttled)] if throttled else [])]
    narrow = width <= NARROW
    rows = 2 + len(moments)
    made, axes = figure(width, int(70 + 80 * sum(heights)) + 18 * (rows if narrow else 1 + len(moments)), heights)
    _draw_timings(axes[0], run)
    for one, field in zip(axes[1:], panels, strict=False):
        _draw_panel(one, moments, field)
    if throttled:
        _draw_throttling(axes[-1], subject, moments, throttled)
    if not _timed(run):
        axes[0].xaxis.set_major_locator(MaxNLocator(10, integer=True))
    axes[-1].set_xlabel("time since the first timing began, s" if _timed(run) else "timing, in the order of time")
    handles: list[Artist] = []
    for name, _, c, shape in _series(run):
        said = f"{name} (line: its median)"
        handles.append(Line2D([], [], color=c, marker=shape, markerfacecolor=_inside(c), linestyle="none", label=said))
    handles += [
        Line2D([], [], color=colour(i), linestyle=dashes(i), marker=marker(i), label=subject.devices[i].label)
        for i in (moments if panels else ())
    ]
    legend(made, handles, 1 if narrow else 2)
    return made


def _draw_timings(axes: Axes, run: Run) -> None:
    for _, one, c, shape in _series(run):
        times = np.array(one.step_time_s.samples) * 1e3
        at = np.array(one.step_time_s.at_s) if _timed(run) else np.arange(1.0, len(times) + 1)
        if len(times) > _MOST_POINTS:
            at, low, middle, high = _binned(at, times)
            axes.fill_between(at, low, high, color=c, alpha=0.25, linewidth=0)
            axes.plot(at, middle, color=c, linewidth=1.2)
        else:
            axes.plot(at, times, color=c, marker=shape, markersize=4.5, markerfacecolor=_inside(c), linestyle="none")
        axes.axhline(one.step_time_s.median * 1e3, color=c, linewidth=1.0, linestyle="-" if c == CHOSEN else "--")
    axes.set_ylabel("step time, ms")
    bottom, top = axes.get_ylim()
    usual = run.step_time_s.median * 1e3
    if top - bottom < 0.02 * usual:  # or noise of under one per cent looks like a mountain
        axes.set_ylim(min(bottom, 0.99 * usual), max(top, 1.01 * usual))


def _inside(c: str) -> str:
    return c if c == CHOSEN else "none"


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
