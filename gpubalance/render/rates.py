"""Sentences about throughputs: with their interval, beside the even split, behind an input
pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpubalance.numbers.units import format_percent, format_rate
from gpubalance.results.common import Interval, Throughput
from gpubalance.results.plan import Predicted
from gpubalance.results.run import Baselines, InputPipeline, Run, alone_in_use
from gpubalance.settings.shares import Shares

_NOTHING_USUAL = "no usual remedy is missing: do less for each sample, or do it once, beforehand"


def per_s(rate: float | None) -> str:
    """`2205 samples/s`."""
    return f"{format_rate(rate)} samples/s"


def rate_text(rate: Throughput) -> str:
    """`2205 samples/s ± 0.1 %`, without the latter if the interval is unknown."""
    return f"{per_s(rate.median)}{half_text(rate.median, rate.ci95)}"


def half_text(value: float, interval: Interval) -> str:
    """` ± 0.1 %`: half the interval as a part of the value; empty if it is unknown."""
    if interval is None:
        return ""
    half = (interval[1] - interval[0]) / 2 / value
    return f" ± {format_percent(half, 1) if half < 1 else 'over 100 %'}"


def within(interval: Interval) -> str:
    """` (1.226 to 1.228)`; empty if the interval is unknown."""
    return f" ({interval[0]:.3f} to {interval[1]:.3f})" if interval else ""


def gains_told(
    of: Run | Predicted, against: Baselines | Predicted, split: Shares, gave: str, multiple: int = 1
) -> Iterator[str]:
    """What a split gains over the even one, and how near it is to the ceiling.

    A larger global batch alone is faster, so one that is not the even split's is told. A run finds
    the largest shares that fit, a plan knows only multiples of its probe's.
    """
    even, interval = against.even, of.speedup_ci95 if isinstance(of, Run) else None
    if even is not None and even.split == split.without_idle:
        yield f"this is the even split, {even.split}"
    elif even is not None and of.speedup_over_even is not None:
        batch, own = even.split.global_batch, split.global_batch
        which, other = "even split", ""
        if batch != own:
            steps = f" in multiples of {multiple}" if multiple > 1 else ""
            which, other = (
                f"largest even split that fits{steps},",
                f" with a global batch of {batch}, not {own}",
            )
        gain = f"{of.speedup_over_even:.3f} × the {which} {even.split}{within(interval)}"
        yield f"{gain}, which {gave} {per_s(_median(even.throughput))}{other}"
    if of.scaling_efficiency is not None:
        alone = f"what the devices gave alone, {per_s(against.solo_sum)} in total"
        if isinstance(against, Baselines) and not all(split.batches):
            alone += (
                f", {format_rate(alone_in_use(against.solo_best, split.batches))} of those in use"
            )
        yield f"{format_percent(of.scaling_efficiency, 1)} of {alone}"


def _median(rate: Throughput | float) -> float:
    return rate.median if isinstance(rate, Throughput) else rate


def pipeline_told(
    pipeline: InputPipeline | None, solo_sum: float | None, *, in_front: bool = False
) -> Iterator[str]:
    """If the user's own pipeline binds, that and what usually helps; otherwise its throughput
    alone.

    If it was `in_front` of the devices in the figures that follow, the split's throughput without
    it is added.
    """
    if pipeline is None:
        return
    held, rate = pipeline.held.median if pipeline.held else 0.0, rate_text(pipeline.alone)
    use = f"{format_percent(pipeline.processor_use)} of the processors"
    if pipeline.binds:
        most = format_rate(max(held, solo_sum or 0.0))
        yield f"your input pipeline gives {rate}; these devices could take {most} (it uses {use})"
        remedies = [f"{one.where}: what usually helps: {one.what}" for one in pipeline.remedies]
        yield from (f"  → {text}" for text in remedies or [_NOTHING_USUAL])
    else:
        without = (
            f"; without waiting for it the split gives {format_rate(held)}"
            if in_front and held
            else ""
        )
        yield f"your input pipeline alone gives {rate}, with {use}{without}"
