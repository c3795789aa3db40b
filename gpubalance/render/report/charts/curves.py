"""Throughput over batch size, one curve for each device: the points, the model, the limit, the chosen batch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator

from gpubalance.numbers.units import format_rate
from gpubalance.render.report.charts.chart import NARROW, Drawing
from gpubalance.render.report.charts.style import INK, colour, dashes, device_name, figure, legend, marker
from gpubalance.results.probe import DeviceProbe
from gpubalance.results.subject import Subject
from gpubalance.settings.shares import pieces_text

_MODEL_POINTS = 120
_LEGEND_ROW_PX = 18


def chart(subject: Subject) -> Drawing | str:
    """The curves. Needs a probe: the result itself, or a probe of its devices."""
    if not subject.probed:
        if subject.kind == "probe":
            return "no batch size was measured"
        return "it is in the probe of these devices, and that is not here: give the probe's file too"
    return _text(subject), lambda width: _draw(subject, width)


def _probed(subject: Subject) -> Iterator[tuple[int, DeviceProbe]]:
    return ((i, one) for i, one in enumerate(subject.probes) if one is not None and one.curve)


def _text(subject: Subject) -> str:
    lines = []
    for i, one in _probed(subject):
        best = max(one.curve, key=lambda point: point.throughput.median)
        lines.append(
            f"{subject.devices[i].label}: up to {format_rate(best.throughput.median)} samples/s at batch {best.batch}, "
            f"{_limit(one)}{_chosen(subject, i)}."
        )
    lines.append("Marks are measured, with their 95 % intervals; lines are the model that is planned with.")
    return " ".join(lines)


def _limit(one: DeviceProbe) -> str:
    limit = one.batch_limit
    if limit is None or limit.fits is None:
        return "limit not known"
    return f"limit {limit.fits}" if limit.fails is not None else f"no limit up to {limit.fits}"


def _chosen(subject: Subject, device: int) -> str:
    if subject.split is None:
        return ""
    batch, micro = subject.split.batches[device], subject.split.micro_batches[device]
    return f", chosen {pieces_text(batch, micro)}" if batch else ", left out"


def _draw(subject: Subject, width: int) -> Figure:
    probed = list(_probed(subject))
    narrow = width <= NARROW
    made, (axes,) = figure(width, (300 if narrow else 360) + _LEGEND_ROW_PX * (len(probed) + 2 + narrow))
    axes.set_xscale("log", base=2)
    for i, one in probed:
        _draw_device(axes, subject, i, one)
    axes.set_ylim(bottom=0)
    batch_ticks(axes, 6 if narrow else 10)
    axes.set_xlabel("batch, samples")
    axes.set_ylabel("throughput, samples/s")
    handles = [
        Line2D([], [], color=colour(i), marker=marker(i), markerfacecolor=_inside(i), linestyle=dashes(i),
               linewidth=1.6, label=f"{device_name(subject.devices[i], width)}: {_limit(one)}{_chosen(subject, i)}")
        for i, one in probed
    ]  # fmt: skip
    if any(one.batch_limit is not None and one.batch_limit.fails is not None for _, one in probed):
        handles.append(Line2D([], [], color=INK, linestyle=":", linewidth=1.8, label="batch limit"))
    if subject.split is not None:
        handles.append(
            Line2D([], [], color=INK, marker="o", markersize=12, markerfacecolor="none", linestyle="none",
                   label="chosen batch")
        )  # fmt: skip
    legend(made, handles, 1)
    return made


def _inside(device: int) -> str:
    return "none" if device % 2 else colour(device)


def _draw_device(axes: Axes, subject: Subject, i: int, one: DeviceProbe) -> None:
    points = sorted(one.curve, key=lambda point: point.batch)
    batches = [point.batch for point in points]
    rates = [point.throughput.median for point in points]
    low, high = np.transpose([p.throughput.ci95 or (p.throughput.median,) * 2 for p in points])
    errors = np.clip([rates - low, high - rates], 0.0, None)
    axes.errorbar(
        batches,
        rates,
        yerr=errors,
        fmt=marker(i),
        color=colour(i),
        markerfacecolor=_inside(i),
        markersize=5 + i % 2 * 2,  # so that both of two equal ones are seen
        elinewidth=1.2,
        capsize=2,
        zorder=3,
    )
    micro = subject.split.micro_batches[i] if subject.split else 0
    limit = one.batch_limit.fits if one.batch_limit is not None and one.batch_limit.fails is not None else None
    last = max([*batches, micro, limit or 0])
    model = one.step_time_model
    if model is not None and last > batches[0]:
        at = np.geomspace(batches[0], last, _MODEL_POINTS)
        times = np.array([model.planned.step_time_s(float(b)) for b in at])
        known = times > 0
        axes.plot(at[known], at[known] / times[known], color=colour(i), linestyle=dashes(i), linewidth=1.6)
    if limit is not None:
        axes.axvline(limit, color=colour(i), linestyle=":", linewidth=1.8, ymax=0.97)
    if micro:
        known_s = model.planned.step_time_s(micro) if model is not None else 0.0
        rate = micro / known_s if known_s > 0 else float(np.interp(micro, batches, rates))
        axes.plot(micro, rate, marker="o", markersize=13, markerfacecolor="none", markeredgewidth=1.8,
                  color=colour(i), zorder=4)  # fmt: skip


def batch_ticks(axes: Axes, most: int) -> None:
    """Labels the axis with powers of two, written out."""
    low, high = axes.get_xlim()
    first, last = int(np.ceil(np.log2(max(low, 1)))), int(np.floor(np.log2(max(high, 2))))
    powers = list(range(first, last + 1)) or [first]
    step = -(-len(powers) // most)
    axes.set_xticks([2.0**power for power in powers[::-1][::step]][::-1])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
