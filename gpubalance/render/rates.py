"""Sentences about throughputs, beside the even split and behind an input pipeline."""

from __future__ import annotations

from collections.abc import Iterator

from gpubalance.numbers.units import format_percent, format_rate
from gpubalance.results.common import Interval, Throughput
from gpubalance.results.plan import Predicted
from gpubalance.results.run import Baselines, InputPipeline, Run, alone_in_use
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.settings import Settings

_NOTHING_USUAL = (
    "no usual remedy is missing: do less for each sample, or do it once, beforehand"
)


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
    if half < 1:
        return f" ± {format_percent(half, 1)}"
    return " ± over 100 %"


def slowed_text(settings: Settings) -> str:
    """`, at 1/8 of the profile's speed (--time-scale 8)`; empty for a profile as it is."""
    scale = settings.time_scale
    if scale == 1:
        return ""
    speed = f"1/{scale:g} of" if scale > 1 else f"{1 / scale:.3g} times"
    return f", at {speed} the profile's speed (--time-scale {scale:g})"


def _unslowed_text(pipeline: InputPipeline, most: float, time_scale: float) -> str:
    """Whether a pipeline keeps up with devices at the profile's own speed, which take `most`."""
    verdict = "your pipeline would keep up with that too"
    if pipeline.alone.median < most:
        verdict = "your pipeline would be the bottleneck"
    takes = f"these devices could take {format_rate(most)}"
    return f"without --time-scale {time_scale:g} {takes}: {verdict}"


def gain_sentences(
    result: Run | Predicted,
    baselines: Baselines | Predicted,
    split: BatchSplit,
    gave: str,
    multiple: int = 1,
) -> Iterator[str]:
    """What a split gains over the even one, and how near it is to the ceiling.

    A larger global batch alone is faster, so one that is not the even split's is named. A run finds
    the largest shares that fit, a plan knows only multiples of its probe's.
    """
    even = baselines.even
    if even is not None and even.split == split.without_idle:
        yield f"this is the even split, {even.split}"
    elif even is not None and result.speedup_over_even is not None:
        times = f"{result.speedup_over_even:.3f} ×"
        within = ""
        if isinstance(result, Run) and result.speedup_ci95 is not None:
            low, high = result.speedup_ci95
            within = f" ({low:.3f} to {high:.3f})"
        rate = even.throughput
        median = rate.median if isinstance(rate, Throughput) else rate
        which = "even split"
        batches = ""
        if even.split.global_batch != split.global_batch:
            which = "largest even split that fits"
            if multiple > 1:
                which += f" in multiples of {multiple}"
            which += ","
            batches = f" with a global batch of {even.split.global_batch}, not {split.global_batch}"
        yield f"{times} the {which} {even.split}{within}, which {gave} {per_s(median)}{batches}"
    elif isinstance(result, Run) and 1 == len(split.used) < len(split.batches):
        yield "no even split ran beside it, as one device has all samples"
    if result.scaling_efficiency is not None:
        part = format_percent(result.scaling_efficiency, 1)
        alone = f"what the devices gave alone, {per_s(baselines.solo_sum)} in total"
        if baselines.solo_with_xla:
            alone += ", the best of them with XLA"
        if isinstance(baselines, Baselines) and not all(split.batches):
            in_use = format_rate(alone_in_use(baselines.solo_best, split.batches))
            alone += f", {in_use} of those in use"
        yield f"{part} of {alone}"


def pipeline_sentences(
    pipeline: InputPipeline | None,
    solo_sum: float | None,
    *,
    in_front: bool = False,
    time_scale: float = 1.0,
) -> Iterator[str]:
    """The throughput of the user's own pipeline and, if that binds, what usually helps.

    If it was `in_front` of the devices in the figures that follow, the split's throughput without
    it is added. Of devices whose profile is slowed, it says what they could take at its own speed.
    """
    if pipeline is None:
        return
    held = 0.0
    if pipeline.held is not None:
        held = pipeline.held.median
    rate = rate_text(pipeline.alone)
    use = f"{format_percent(pipeline.processor_use)} of the processors"
    most = max(held, solo_sum or 0.0)
    if pipeline.binds:
        takes = f"these devices could take {format_rate(most)}"
        yield f"your input pipeline gives {rate}; {takes} (it uses {use})"
        for remedy in pipeline.remedies:
            yield f"  → {remedy.where}: what usually helps: {remedy.what}"
        if not pipeline.remedies:
            yield f"  → {_NOTHING_USUAL}"
    else:
        without = ""
        if in_front and held:
            without = f"; without waiting for it the split gives {format_rate(held)}"
        yield f"your input pipeline alone gives {rate}, with {use}, and keeps up{without}"
        if time_scale > 1 and most:
            yield _unslowed_text(pipeline, most * time_scale, time_scale)
