"""Throughput and goodput over the global batch, and what a sample is worth there."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gpubalance.numbers.units import format_percent, format_rate, three_digits
from gpubalance.planning.noise import efficiency
from gpubalance.render.report.charts.chart import NARROW, Drawing
from gpubalance.render.report.charts.curves import batch_ticks
from gpubalance.render.report.charts.style import BLUE, CHOSEN, GREEN, MUTED, figure, legend
from gpubalance.results.plan import Plan
from gpubalance.results.subject import Subject


def chart(subject: Subject) -> Drawing | str:
    """Only for a plan with a noise scale and a free global batch; no other result misses it."""
    plan = subject.plan
    if plan is None or plan.predicted.noise_scale is None or len(plan.predicted.by_global_batch) < 2:
        return ""
    scale = plan.predicted.noise_scale
    return _text(plan, scale), lambda width: _draw(plan, scale, width)


def _text(plan: Plan, scale: float) -> str:
    told = [
        f"{one.of} {'/'.join(map(str, one.batches))}: {format_rate(one.throughput)} samples/s, each worth "
        f"{format_percent(one.efficiency)}, goodput {format_rate(one.goodput)}."
        for one in plan.predicted.by_goodput
    ]
    return " ".join([f"By a noise scale of {three_digits(scale)} samples.", *told])


def _draw(plan: Plan, scale: float, width: int) -> Figure:
    narrow = width <= NARROW
    made, (rates, worth) = figure(width, 380 if narrow else 420, (2, 1))
    splits = plan.predicted.by_global_batch
    totals = [one.split.global_batch for one in splits]
    rates.set_xscale("log", base=2)
    rates.plot(totals, [one.throughput for one in splits], color=BLUE, linestyle=(0, (5, 2)), linewidth=1.8)
    goodputs = [one.throughput * efficiency(one.split.global_batch, scale) for one in splits]
    rates.plot(totals, goodputs, color=GREEN, linewidth=2.2)
    worth.plot(totals, [100 * efficiency(total, scale) for total in totals], color=MUTED, linewidth=1.8)
    for axes in (rates, worth):
        axes.axvline(plan.global_batch, color=CHOSEN, linestyle=":", linewidth=1.6)
        axes.set_ylim(bottom=0)
    rates.set_ylabel("samples/s")
    worth.set_ylabel("worth, %")
    worth.set_xlabel("global batch, samples")
    batch_ticks(worth, 6 if narrow else 10)
    handles = [
        Line2D([], [], color=BLUE, linestyle=(0, (5, 2)), linewidth=1.8, label="throughput"),
        Line2D([], [], color=GREEN, linewidth=2.2, label="goodput"),
        Line2D([], [], color=MUTED, linewidth=1.8, label="what a sample is worth"),
        Line2D([], [], color=CHOSEN, linestyle=":", linewidth=1.6, label=f"chosen, {plan.global_batch}"),
    ]
    legend(made, handles, 2 if narrow else 4)
    return made
