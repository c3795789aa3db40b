"""Whether several devices are worth it, how long an epoch takes, and how much energy the samples cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from gpubalance.numbers.units import format_percent, format_rate, three_digits
from gpubalance.results.common import Throughput
from gpubalance.results.run import Pipeline, Run, SoloBest
from gpubalance.results.telemetry import Telemetry

# Of the best device alone: a smaller gain is hardly worth another device.
_CLEARLY = 0.05
_WORTH, _NOT_WORTH = "worth it", "not worth it"
_SAMPLES = 1000


def worth_text(run: Run, epoch: int | None = None, pipeline: Pipeline | None = None) -> Iterator[str]:
    """What the devices gain over the best one alone, with a verdict; and how long an epoch of `epoch` samples takes.

    `pipeline` is the user's own, by default the run's; it feeds one device no faster than several.
    """
    most = most_fed(pipeline or run.pipeline)
    rates = [("this split", run.throughput.median)]
    if run.baselines.even is not None:
        rates.insert(0, ("the even split", run.baselines.even.throughput.median))
    if run.baselines.solo_best and len(run.replicas) > 1:
        best = max(run.baselines.solo_best, key=lambda one: one.throughput)
        label = run.devices[best.device].label
        rates.insert(0, (f"{label} alone", best.throughput))
        yield _worth(run, best, most)
        if max(best.throughput, run.throughput.median) <= most:
            yield from _energy(label, best, run.throughput.median, [one.telemetry for one in run.replicas])
    if epoch is not None:
        yield epoch_text(epoch, rates, most)


def most_fed(pipeline: Pipeline | None) -> float:
    """Samples per second that the devices can be fed; infinite if the pipeline does not bind."""
    return pipeline.alone.median if pipeline and pipeline.binds else math.inf


def _worth(run: Run, best: SoloBest, most: float) -> str:
    """The gain over the device that is best alone, with a verdict.

    Where that is better only because its batch is larger than the run's global batch, the verdict is by what a device
    gives alone at that.
    """
    label, rate = run.devices[best.device].label, run.throughput
    if most <= best.throughput:
        return (
            f"{label} alone takes {format_rate(best.throughput)} (at batch {best.batch}), more than your input "
            "pipeline gives: another device is not worth it until that gives more"
        )
    if most < rate.median:
        rate = Throughput(median=most, ci95=None)
    more, word = _gain(rate, best.throughput)
    more += " behind your input pipeline" if rate.median == most else ""
    at_best = f"{more} than {label} alone at its best ({format_rate(best.throughput)} at batch {best.batch})"
    same_rate, same_label = max(
        (one.at_global_batch or 0.0, run.devices[one.device].label) for one in run.baselines.solo_best or ()
    )
    if word == _WORTH or best.batch <= run.global_batch or not 0 < same_rate < (1 - _CLEARLY) * best.throughput:
        return f"{at_best}: {f'{word}, use {label} alone' if word == _NOT_WORTH else word}"
    more, word = _gain(rate, same_rate)
    larger = "; with a larger one it may be" if word == _NOT_WORTH else "; a larger one may give more"
    return (
        f"{at_best}; {more} than {same_label} alone at this global batch of {run.global_batch} "
        f"({format_rate(same_rate)}): {word} at this global batch{larger}"
    )


def _gain(rate: Throughput, alone: float) -> tuple[str, str]:
    """`34 % more` or `5 % less` than one device gives alone, and whether that is worth another device."""
    gain = rate.median / alone - 1
    word = _WORTH if gain >= _CLEARLY else "hardly worth it" if gain > 0 else _NOT_WORTH
    low, high = rate.ci95 or (rate.median, rate.median)
    if low < alone < high and high > (1 + _CLEARLY) * alone:
        word = "measured too roughly to say whether it is worth it"
    how = f"{format_percent(abs(gain))} {'more' if gain >= 0 else 'less'}"
    return "no more" if how.startswith("0 %") else how, word


def _energy(label: str, best: SoloBest, rate: float, telemetry: Sequence[Telemetry | None]) -> Iterator[str]:
    """The energy of some samples, alone and together; nothing if a device does not report its power."""
    each = [told.samples_per_joule(rate) if told else None for told in telemetry]
    if all(each) and best.samples_per_joule:
        alone = three_digits(_SAMPLES / best.samples_per_joule)
        together = three_digits(sum(_SAMPLES / known for known in each if known))
        yield f"energy of {_SAMPLES:,} samples: {alone} J with {label} alone, {together} J together"


def epoch_text(epoch: int, rates: Sequence[tuple[str, float]], most: float = math.inf) -> str:
    """`an epoch of 50,000 samples: 37.2 s with GPU:0 alone, 28.0 s with the even split, 22.7 s with this split`.

    `most` is the samples per second that the devices can be fed.
    """
    times = ", ".join(f"{_time(epoch / min(rate, most))} with {name}" for name, rate in rates)
    bound = "; your input pipeline gives them no faster" if any(rate > most for _, rate in rates) else ""
    return f"an epoch of {epoch:,} samples: {times}{bound}"


def _time(seconds: float) -> str:
    for unit, name in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit:
            return f"{three_digits(seconds / unit)} {name}"
    return f"{three_digits(seconds)} s"
