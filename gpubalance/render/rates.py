"""Sentences about throughputs, beside the even split, and whether another device is worth it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from gpubalance.numbers.units import format_percent, format_rate, three_digits
from gpubalance.results.common import Interval, Throughput
from gpubalance.results.plan import Predicted
from gpubalance.results.run import Baselines, InputPipeline, Run, SoloBest, alone_in_use
from gpubalance.results.warnings import TOO_SLOW
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.settings import Settings

_NOTHING_USUAL = (
    "no usual remedy applies: do less work per sample, or do it once in advance"
)

# Of the best device alone: a smaller gain is hardly worth another device.
_CLEARLY = 0.05
_WORTH = "worth it"
_NOT_WORTH = "not worth it"
_SAMPLES = 1000
_NO_VERDICT = (
    "most steps took longer than the profile's time, so it is unknown whether "
    "another device is worth it"
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


def _unslowed_text(pipeline: InputPipeline, maximum: float, time_scale: float) -> str:
    """Whether a pipeline keeps up with devices at the profile's own speed, which take `maximum`."""
    verdict = "your pipeline would keep up with that too"
    if pipeline.alone.median < maximum:
        verdict = "your pipeline would be the bottleneck"
    takes = f"these devices could take {format_rate(maximum)}"
    return f"without --time-scale {time_scale:g} {takes}: {verdict}"


def gain_sentences(
    result: Run | Predicted,
    baselines: Baselines | Predicted,
    split: BatchSplit,
    verb: str,
    multiple: int = 1,
) -> Iterator[str]:
    """What a split gains over the even one, which `verb` so much, and how near the ceiling it is.

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
        yield f"{times} the {which} {even.split}{within}, which {verb} {per_s(median)}{batches}"
    elif isinstance(result, Run) and 1 == len(split.used) < len(split.batches):
        yield "no even split was measured, because one device has all samples"
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
    fed_the_split: bool = False,
    time_scale: float = 1.0,
) -> Iterator[str]:
    """The throughput of the user's own pipeline and, if that binds, what usually helps.

    If it `fed_the_split` whose figures follow, the split's throughput without it is added. Of
    devices whose profile is slowed, it says what they could take at its own speed.
    """
    if pipeline is None:
        return
    held = 0.0
    if pipeline.held is not None:
        held = pipeline.held.median
    rate = rate_text(pipeline.alone)
    use = f"{format_percent(pipeline.processor_use)} of the processors"
    maximum = max(held, solo_sum or 0.0)
    if pipeline.binds:
        takes = f"these devices could take {format_rate(maximum)}"
        yield f"your input pipeline gives {rate}; {takes} (it uses {use})"
        for remedy in pipeline.remedies:
            yield f"  → {remedy.where}: what usually helps: {remedy.what}"
        if not pipeline.remedies:
            yield f"  → {_NOTHING_USUAL}"
    else:
        without = ""
        if fed_the_split and held:
            without = f"; without waiting for it the split gives {format_rate(held)}"
        yield f"your input pipeline alone gives {rate}, with {use}, and keeps up{without}"
        if time_scale > 1 and maximum:
            yield _unslowed_text(pipeline, maximum * time_scale, time_scale)


def worth_sentences(
    run: Run, epoch: int | None = None, pipeline: InputPipeline | None = None
) -> Iterator[str]:
    """What the devices gain over the best one alone, with a verdict; and the duration of an epoch.

    `epoch` is its number of samples. `pipeline` is the user's own, by default the run's; it feeds
    one device no faster than several.
    """
    maximum = most_fed(pipeline or run.pipeline)
    rate = run.throughput.median
    rates = {}
    bests = run.baselines.solo_best
    if bests and len(run.replicas) > 1:
        best = max(bests, key=lambda best: best.throughput)
        rates[f"{run.label(best.device)} alone"] = best.throughput
        if any(one.code == TOO_SLOW for one in run.warnings):
            yield _NO_VERDICT
        else:
            yield from _worth(run, best, maximum)
        for timed in bests:
            if text := xla_text(run.label(timed.device), timed.xla_ratio):
                yield text
        if max(best.throughput, rate) <= maximum:
            yield from _energy(run, best)
    if epoch is not None:
        if run.baselines.even is not None:
            rates["the even split"] = run.baselines.even.throughput.median
        yield epoch_text(epoch, {**rates, "this split": rate}, maximum)


def most_fed(pipeline: InputPipeline | None) -> float:
    """Samples per second that the devices can be fed; infinite if the pipeline does not bind."""
    if pipeline and pipeline.binds:
        return pipeline.alone.median
    return math.inf


def _worth(run: Run, best: SoloBest, maximum: float) -> Iterator[str]:
    """The gain over the device that is best alone, with a verdict.

    Where that is better only because its batch is larger than the run's global batch, the verdict
    is by what a device gives alone at that, and stands first.
    """
    label = run.label(best.device)
    alone = best.throughput
    if maximum <= alone:
        takes = f"{label} alone takes {format_rate(alone)} (at batch {best.batch})"
        why = "another device is not worth it until the pipeline gives more"
        yield f"{takes}, more than your input pipeline gives: {why}"
        return
    rate = run.throughput
    behind = ""
    if maximum <= rate.median:
        rate = Throughput(median=maximum, ci95=None)
        behind = " behind your input pipeline"
    more, word = _gain(rate, alone)
    gain = f"{more}{behind} than {label} alone at its best"
    text = f"{gain} ({format_rate(alone)} at batch {best.batch}{_how(best)})"
    # Of equal devices the last one.
    bests = reversed(run.baselines.solo_best or (best,))
    other = max(bests, key=lambda other: other.at_global_batch or 0.0)
    at_batch = other.at_global_batch or 0.0
    is_for_its_batch = (
        best.batch > run.global_batch and 0 < at_batch < (1 - _CLEARLY) * alone
    )
    if word == _WORTH or not is_for_its_batch:
        if word == _NOT_WORTH:
            word = f"{word}, use {label} alone"
        yield f"{text}: {word}"
        return
    more, word = _gain(rate, at_batch)
    yield (
        f"{more} than {run.label(other.device)} alone ({format_rate(at_batch)}), both with a "
        f"global batch of {run.global_batch}: {word} at this size"
    )
    larger = "a larger global batch may give more"
    if word == _NOT_WORTH:
        larger = "with a larger global batch it may be worth it"
    yield f"{text}: {larger}"


def _how(best: SoloBest) -> str:
    """Which of the two its best is, if it was timed with XLA and without."""
    if best.xla_ratio is None:
        return ""
    if best.is_with_xla:
        return " with XLA, Keras' default on one GPU"
    return f" without XLA; with it {format_rate(best.throughput * best.xla_ratio)}"


def xla_text(label: str, ratio: float | None) -> str:
    """A recommendation of --xla for a device that is clearly faster with it; else empty."""
    if ratio is None or ratio <= 1 + _CLEARLY:
        return ""
    return (
        f"{label} alone is {format_percent(ratio - 1)} faster with XLA: "
        "gpubalance balance --xla trains with it"
    )


def _gain(rate: Throughput, alone: float) -> tuple[str, str]:
    """`34 % more` or `5 % less` than one device gives alone, and whether that is worth another."""
    gain = rate.median / alone - 1
    low, high = rate.ci95 or (rate.median, rate.median)
    if low < alone < high and high > (1 + _CLEARLY) * alone:
        word = "measured too imprecisely to tell whether it is worth it"
    elif gain >= _CLEARLY:
        word = _WORTH
    else:
        word = "hardly worth it" if gain > 0 else _NOT_WORTH
    part = format_percent(abs(gain))
    if part == "0 %":
        return "no more", word
    if gain < 0:
        return f"{part} less", word
    return f"{part} more", word


def _energy(run: Run, best: SoloBest) -> Iterator[str]:
    """The energy of some samples, alone and together; nothing if a device reports no power."""
    if not best.samples_per_joule:
        return
    together_j = 0.0
    for replica in run.replicas:
        telemetry = replica.telemetry
        per_joule = telemetry and telemetry.samples_per_joule(run.throughput.median)
        if not per_joule:
            return
        together_j += _SAMPLES / per_joule
    label = run.label(best.device)
    alone = three_digits(_SAMPLES / best.samples_per_joule)
    together = three_digits(together_j)
    yield f"energy of {_SAMPLES:,} samples: {alone} J with {label} alone, {together} J together"


def epoch_text(epoch: int, rates: Mapping[str, float], maximum: float) -> str:
    """`an epoch of 50,000 samples: 37.2 s with GPU:0 alone, 22.7 s with this split`.

    `maximum` is the samples per second that the devices can be fed.
    """
    times = [
        f"{_time(epoch / min(rate, maximum))} with {name}"
        for name, rate in rates.items()
    ]
    text = f"an epoch of {epoch:,} samples: {', '.join(times)}"
    if max(rates.values()) > maximum:
        text += "; your input pipeline limits this"
    return text


def _time(seconds: float) -> str:
    for unit_s, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit_s:
            return f"{three_digits(seconds / unit_s)} {unit}"
    return f"{three_digits(seconds)} s"
