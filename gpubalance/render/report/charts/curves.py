"""Throughput over batch size: each device's points, model, limit and chosen batch."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from gpubalance.render.report.charts.style import (
    INK,
    NARROW,
    Drawing,
    device_name,
    legend,
    look,
    new_figure,
)
from gpubalance.results.probe import DeviceProbe
from gpubalance.results.subject import ReportSubject
from gpubalance.settings.batch_split import pieces_text

_MODEL_POINTS = 120


def curves(subject: ReportSubject) -> Drawing | str:
    """The curves. Needs a probe: the result itself, or a probe of its devices."""
    if subject.probed:
        markers = "Points are measured, with their 95 % intervals"
        note = f"{markers}; lines are the step-time model that gpubalance plans with."
        return note, lambda width: _draw(subject, width)
    if subject.kind == "probe":
        return "no batch size was measured"
    return (
        "it is in the probe of these devices, which is not stored here: give the "
        "probe's file too"
    )


def _draw(subject: ReportSubject, width: int) -> Figure:
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
        times = np.array([model.planned.step_time_s(float(batch)) for batch in at])
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
        if model is not None and model.planned.step_time_s(chosen) > 0:
            rate = chosen / model.planned.step_time_s(chosen)
        ring: dict[str, Any] = {
            "markersize": 13,
            "markerfacecolor": "none",
            "markeredgewidth": 1.8,
        }
        axes.plot(chosen, rate, marker="o", color=colour, zorder=4, **ring)
