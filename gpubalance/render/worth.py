"""Whether several devices are worth it, how long an epoch takes, and how much energy the samples cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from gpubalance.numbers.units import format_percent, format_rate, three_digits
from gpubalance.results.common import Throughput
from gpubalance.results.run import Pipeline, Run, SoloBest

# Of the best device alone: a smaller gain is hardly worth another device.
_CLEARLY = 0.05
_WORTH, _NOT_WORTH = "worth it", "not worth it"
_SAMPLES = 1000


def worth_text(run: Run, epoch: int | None = None, pipeline: Pipeline | None = None) -> Iterator[str]:
    """What the devices gain over the best one alone, with a verdict; and how long an epoch of `epoch` samples takes.

    `pipeline` is the user's own, by default the run's; it feeds one device no faster than several.
    """
    most, rate, even = most_fed(pipeline or run.pipeline), run.throughput.median, run.baselines.even
    rates = {}
    if run.baselines.solo_best and len(run.replicas) > 1:
        best = max(run.baselines.solo_best, key=lambda one: one.throughput)
        label = run.label(best.device)
        rates[f"{label} alone"] = best.throughput
        yield _worth(run, label, best, most)
        if max(best.throughput, rate) <= most:
            yield from _energy(run, label, best)
    if epoch is not None:
        rates |= {"the even split": even.throughput.median} if even is not None else {}
        yield epoch_text(epoch, {**rates, "this split": rate}, most)


def most_fed(pipeline: Pipeline | None) -> float:
    """Samples per second that the devices can be fed; infinite if the pipeline does not bind."""
    return pipeline.alone.median if pipeline and pipeline.binds else math.inf


def _worth(run: Run, label: str, best: SoloBest, most: float) -> str:
    """The gain over the device that is best alone, with a verdict.

    Where that is better only because its batch is larger than the run's global batch, the verdict is by what a device
    gives alone at that.
    """
    rate, batch, alone = run.throughput, run.global_batch, best.throughput
    if most <= alone:
        than = f"{label} alone takes {format_rate(alone)} (at batch {best.batch}), more than your input pipeline gives"
        return f"{than}: another device is not worth it until that gives more"
    if most < rate.median:
        rate = Throughput(median=most, ci95=None)
    more, word = _gain(rate, alone)
    more += " behind your input pipeline" if rate.median == most else ""
    at_best = f"{more} than {label} alone at its best ({format_rate(alone)} at batch {best.batch})"
    known = {one.at_global_batch or 0.0: one.device for one in run.baselines.solo_best or ()}
    same = max(known)
    if word == _WORTH or best.batch <= batch or not 0 < same < (1 - _CLEARLY) * alone:
        return f"{at_best}: {f'{word}, use {label} alone' if word == _NOT_WORTH else word}"
    more, word = _gain(rate, same)
    than = f"{run.devices[known[same]].label} alone at this global batch of {batch} ({format_rate(same)})"
    larger = "with a larger one it may be" if word == _NOT_WORTH else "a larger one may give more"
    return f"{at_best}; {more} than {than}: {word} at this global batch; {larger}"


def _gain(rate: Throughput, alone: float) -> tuple[str, str]:
    """`34 % more` or `5 % less` than one device gives alone, and whether that is worth another device."""
    gain = rate.median / alone - 1
    word = _WORTH if gain >= _CLEARLY else "hardly worth it" if gain > 0 else _NOT_WORTH
    low, high = rate.ci95 or (rate.median, rate.median)
    if low < alone < high and high > (1 + _CLEARLY) * alone:
        word = "measured too roughly to say whether it is worth it"
    part = format_percent(abs(gain))
    return "no more" if part == "0 %" else f"{part} {'more' if gain >= 0 else 'less'}", word


def _energy(run: Run, label: str, best: SoloBest) -> Iterator[str]:
    """The energy of some samples, alone and together; nothing if a device does not report its power."""
    told = [replica.telemetry for replica in run.replicas]
    each = [one.samples_per_joule(run.throughput.median) if one else None for one in told]
    if all(each) and best.samples_per_joule:
        together = three_digits(sum(_SAMPLES / known for known in each if known))
        alone = three_digits(_SAMPLES / best.samples_per_joule)
        yield f"energy of {_SAMPLES:,} samples: {alone} J with {label} alone, {together} J together"


def epoch_text(epoch: int, rates: Mapping[str, float], most: float = math.inf) -> str:
    """`an epoch of 50,000 samples: 37.2 s with GPU:0 alone, 28.0 s with the even split, 22.7 s with this split`.

    `most` is the samples per second that the devices can be fed.
    """
    times = ", ".join(f"{_time(epoch / min(rate, most))} with {name}" for name, rate in rates.items())
    bound = "; your input pipeline gives them no faster" if max(rates.values()) > most else ""
    return f"an epoch of {epoch:,} samples: {times}{bound}"


def _time(seconds: float) -> str:
    units = {3600.0: "h", 60.0: "min", 0.0: "s"}
    unit = next(unit for unit in units if seconds >= 2 * unit)
    return f"{three_digits(seconds / (unit or 1.0))} {units[unit]}"
