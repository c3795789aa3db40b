"""Throughput over batch size, one curve for each device: the points, the model, the limit, the
chosen batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from gpubalance.render.report.charts.chart import Drawing
from gpubalance.render.report.charts.style import INK, NARROW, device_name, figure, legend, look
from gpubalance.results.probe import DeviceProbe
from gpubalance.results.subject import ReportSubject
from gpubalance.settings.shares import pieces_text

_MODEL_POINTS = 120


def curves(subject: ReportSubject) -> Drawing | str:
    """The curves. Needs a probe: the result itself, or a probe of its devices."""
    if not subject.probed:
        if subject.kind == "probe":
            return "no batch size was measured"
        return (
            "it is in the probe of these devices, and that is not here: give the probe's file too"
        )
    probed = {i: one for i, one in enumerate(subject.probes) if one is not None and one.curve}
    note = (
        "Marks are measured, with their 95 % intervals; lines are the model that is planned with."
    )
    return note, lambda width: _draw(subject, probed, width)


def _limit(one: DeviceProbe) -> str:
    limit = one.batch_limit
    if limit is None or limit.fits is None:
        return "limit not known"
    return f"limit {limit.fits}" if limit.fails is not None else f"no limit up to {limit.fits}"


def _chosen(subject: ReportSubject, device: int) -> str:
    if subject.split is None:
        return ""
    batch, micro = subject.split.batches[device], subject.split.micro_batches[device]
    return f", chosen {pieces_text(batch, micro)}" if batch else ", left out"


def _draw(subject: ReportSubject, probed: dict[int, DeviceProbe], width: int) -> Figure:
    narrow = width <= NARROW
    made, (axes,) = figure(width, 300 if narrow else 360)
    axes.set_xscale("log", base=2)
    for i, one in probed.items():
        name = f"{device_name(subject.devices[i], width)}: {_limit(one)}{_chosen(subject, i)}"
        _draw_device(axes, i, one, subject.split.micro_batches[i] if subject.split else 0, name)
    if any(one.batch_limit and one.batch_limit.fails for one in probed.values()):
        axes.plot([], [], color=INK, linestyle=":", linewidth=1.8, label="batch limit")
    if subject.split is not None:
        axes.plot(
            [], [], "o", color=INK, markersize=12, markerfacecolor="none", label="chosen batch"
        )
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=6 if narrow else 10))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda batch, _: f"{batch:g}"))
    axes.set_xlabel("batch, samples")
    axes.set_ylabel("throughput, samples/s")
    legend(made, 1)
    return made


def _draw_device(axes: Axes, i: int, one: DeviceProbe, chosen: int, name: str) -> None:
    points = sorted(one.curve, key=lambda point: point.batch)
    batches = [point.batch for point in points]
    rates = [point.throughput.median for point in points]
    style, model, limit = look(i), one.step_time_model, one.batch_limit
    # Every other device's marks are larger and hollow, so that both of two equal ones are seen.
    marks: dict[str, Any] = {
        "markersize": 5 + i % 2 * 2,
        "markerfacecolor": "none" if i % 2 else style["color"],
    }
    most = limit.fits if limit is not None and limit.fails is not None else None
    at = np.geomspace(batches[0], max([*batches, chosen, most or 0]), _MODEL_POINTS)
    times = np.array([model.planned.step_time_s(float(batch)) if model else 0.0 for batch in at])
    known = times > 0
    axes.plot(
        at[known],
        at[known] / times[known],
        color=style["color"],
        linestyle=style["linestyle"],
        linewidth=1.6,
    )
    axes.plot([], [], **style, **marks, linewidth=1.6, label=name)
    ends = np.transpose(
        [point.throughput.ci95 or (point.throughput.median,) * 2 for point in points]
    )
    errors = np.clip([rates - ends[0], ends[1] - rates], 0.0, None)
    marked = style | {"linestyle": "none"}
    axes.errorbar(
        batches, rates, yerr=errors, **marked, **marks, elinewidth=1.2, capsize=2, zorder=3
    )
    if most is not None:
        axes.axvline(most, color=style["color"], linestyle=":", linewidth=1.8, ymax=0.97)
    if chosen:
        known_s = model.planned.step_time_s(chosen) if model is not None else 0.0
        rate = chosen / known_s if known_s > 0 else float(np.interp(chosen, batches, rates))
        ring: dict[str, Any] = {"markersize": 13, "markerfacecolor": "none", "markeredgewidth": 1.8}
        axes.plot(chosen, rate, marker="o", color=style["color"], zorder=4, **ring)
