"""A run as text: one line for each window, and its summary."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from gpubalance.numbers.units import (
    format_bytes,
    format_percent,
    format_rate,
    format_seconds,
    three_digits,
)
from gpubalance.render.fields import device_grid, names_of
from gpubalance.render.rates import gains_told, per_s, pipeline_told, rate_text
from gpubalance.render.table import BLANK, CUT_SHORT, Part
from gpubalance.results.common import Throughput
from gpubalance.results.plan import Predicted, Share
from gpubalance.results.run import InputPipeline, Measurement, Replica, Run, SoloBest
from gpubalance.settings.device import Device
from gpubalance.settings.shares import share_text

_SHOWN = 1e-3  # of a step: what is less changes none of its figures
# Of the best device alone: a smaller gain is hardly worth another device.
_CLEARLY = 0.05
_WORTH, _NOT_WORTH = "worth it", "not worth it"
_SAMPLES = 1000


def window_text(
    number: int, of: int, name: str, devices: Sequence[Device], measured: Measurement
) -> str:
    """One line: `window 1 of 3: GPU:0 [820] 1279 samples/s …`; only the rate of another split than
    the run's own.
    """
    head, rate = f"window {number} of {of}", per_s(measured.throughput.median)
    if not name:
        return f"{head}: {measured_text(devices, measured)}"
    which = "the split with batches held on the devices" if name == "held" else f"the {name} split"
    return f"{head}, {which}, {measured.split}: {rate}"


def measured_text(devices: Sequence[Device], measured: Measurement) -> str:
    """`GPU:0 [820] 1279 samples/s compute 620 ms; …; total [1388] 2164 samples/s step 641 ms sync
    12.3 ms`.
    """
    parts = [
        f"{devices[one.device].label} [{share_text(one.batch, one.micro_batch)}] "
        f"{per_s(one.throughput)} "
        f"compute {format_seconds(one.compute_s)}"
        for one in measured.replicas
    ]
    rate, step = per_s(measured.throughput.median), format_seconds(measured.step_time_s.median)
    total = (
        f"total [{measured.global_batch}] {rate} step {step} sync {format_seconds(measured.sync_s)}"
    )
    return "; ".join([*parts, total])


def run_told(
    run: Run, epoch: int | None = None, pipeline: InputPipeline | None = None
) -> Iterator[Part]:
    """The answer and where each device's time goes; with `epoch`, the time of that many samples.

    `pipeline` is the user's own if it was measured after the run.
    """
    yield from _answer(run)
    yield from worth_text(run, epoch, pipeline)
    yield BLANK
    leads = {"": names_of(run.devices), "batch": lambda one: share_text(one.batch, one.micro_batch)}
    yield device_grid(run.devices, run.replicas, leads)
    idle = [
        device.label for device, batch in zip(run.devices, run.batches, strict=True) if not batch
    ]
    yield f"{', '.join(idle)}: no samples, left out" if idle else ""
    yield step_text(run, run.replicas)
    yield from _summing_told(run)
    spread = run.step_spread
    if spread is not None:
        half, most = format_seconds(spread.p50_s), format_seconds(spread.p95_s)
        unlike = f"half of the steps take up to {half}, 95 % up to {most}; rates use the mean"
        yield (
            "batches differ in shape: "
            f"{unlike if half != most else f'their steps take the same time, {half}'}"
        )
    yield "" if run.complete else CUT_SHORT


def _summing_told(run: Run) -> Iterator[str]:
    """How gradients are summed, if part of that is hidden behind compute or it is not exact."""
    if run.pack_bytes:
        packs = format_bytes(run.pack_bytes)
        yield f"sync is what is not hidden behind compute: gradients are summed in packs of {packs}"
    if run.settings.gradients == "bf16" and run.pack_bytes is not None:
        yield (
            "gradients are sent and summed as bfloat16, which is not exact: gpubalance guide "
            "exactness"
        )


def step_text(of: Run | Predicted, parts: Sequence[Replica | Share]) -> str:
    """`step 718 ms = slowest compute 702 ms + update 3.90 ms + sync 11.9 ms; imbalance 1.007 (…)`.

    Left out are an update of no duration, what a single device has not, and what a step does not
    wait for. With noise the slowest device waits in those steps in which another one is the
    slowest. The parts are of the steps that were timed: where these took longer than the others,
    that is subtracted.
    """
    last = max(parts, key=lambda one: one.compute_s + one.update_s)
    several, wait_s = sum(one.batch > 0 for one in parts) > 1, getattr(last, "wait_s", 0.0)
    input_s, slow_s, excess_s = None, 0.0, 0.0
    if isinstance(of, Run):
        step_s, input_s = of.step_time_s.median, of.awaited_input_s
        slow_s, excess_s = of.slow_s, of.excess_s
    else:
        step_s = of.step_time_s
    times = {
        "slowest compute": last.compute_s,
        "update": last.update_s or None,
        "wait": wait_s if wait_s > _SHOWN * step_s else None,
        "sync": of.sync_s if several else None,
        "waiting for input": input_s,
        "rare slow steps": slow_s or None,
    }
    told = {
        name: f"{name} {format_seconds(seconds)}"
        for name, seconds in times.items()
        if seconds is not None
    }
    if input_s is not None:
        told["waiting for input"] += f" ({format_percent(input_s / step_s, 1)})"
    less = (
        f" − {format_seconds(excess_s)} (steps that were timed were slower)"
        if excess_s > _SHOWN * step_s
        else ""
    )
    imbalance = f"; imbalance {of.imbalance:.3f} (1 = they finish together)" if several else ""
    return f"step {format_seconds(step_s)} = {' + '.join(told.values())}{less}{imbalance}"


def run_headline(run: Run) -> str:
    """`batches 820 568: 2166 samples/s ± 0.0 %, model small`."""
    batches = " ".join(map(str, run.batches))
    if run.split.accumulates:
        batches += f" in micro-batches {' '.join(map(str, run.micro_batches))}"
    held = " on batches held on the devices" if run.settings.data and not run.pipeline else ""
    return f"batches {batches}: {rate_text(run.throughput)}{held}, model {run.settings.model}"


def _answer(run: Run) -> Iterator[str]:
    """What the split gives, compared with the even split and with the devices alone."""
    yield from pipeline_told(run.pipeline, run.baselines.solo_sum, in_front=True)
    yield run_headline(run)
    yield from gains_told(run, run.baselines, run.split, "gave")


def worth_text(
    run: Run, epoch: int | None = None, pipeline: InputPipeline | None = None
) -> Iterator[str]:
    """What the devices gain over the best one alone, with a verdict; and how long an epoch of
    `epoch` samples takes.

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


def most_fed(pipeline: InputPipeline | None) -> float:
    """Samples per second that the devices can be fed; infinite if the pipeline does not bind."""
    return pipeline.alone.median if pipeline and pipeline.binds else math.inf


def _worth(run: Run, label: str, best: SoloBest, most: float) -> str:
    """The gain over the device that is best alone, with a verdict.

    Where that is better only because its batch is larger than the run's global batch, the verdict
    is by what a device gives alone at that.
    """
    rate, batch, alone = run.throughput, run.global_batch, best.throughput
    if most <= alone:
        than = (
            f"{label} alone takes {format_rate(alone)} (at batch {best.batch}), more than your "
            "input pipeline gives"
        )
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
    than = (
        f"{run.devices[known[same]].label} alone at this global batch of {batch} "
        f"({format_rate(same)})"
    )
    larger = "with a larger one it may be" if word == _NOT_WORTH else "a larger one may give more"
    return f"{at_best}; {more} than {than}: {word} at this global batch; {larger}"


def _gain(rate: Throughput, alone: float) -> tuple[str, str]:
    """`34 % more` or `5 % less` than one device gives alone, and whether that is worth another
    device.
    """
    gain = rate.median / alone - 1
    word = _WORTH if gain >= _CLEARLY else "hardly worth it" if gain > 0 else _NOT_WORTH
    low, high = rate.ci95 or (rate.median, rate.median)
    if low < alone < high and high > (1 + _CLEARLY) * alone:
        word = "measured too roughly to say whether it is worth it"
    part = format_percent(abs(gain))
    return "no more" if part == "0 %" else f"{part} {'more' if gain >= 0 else 'less'}", word


def _energy(run: Run, label: str, best: SoloBest) -> Iterator[str]:
    """The energy of some samples, alone and together; nothing if a device does not report its
    power.
    """
    told = [replica.telemetry for replica in run.replicas]
    each = [one.samples_per_joule(run.throughput.median) if one else None for one in told]
    if all(each) and best.samples_per_joule:
        together = three_digits(sum(_SAMPLES / known for known in each if known))
        alone = three_digits(_SAMPLES / best.samples_per_joule)
        yield f"energy of {_SAMPLES:,} samples: {alone} J with {label} alone, {together} J together"


def epoch_text(epoch: int, rates: Mapping[str, float], most: float = math.inf) -> str:
    """`an epoch of 50,000 samples: 37.2 s with GPU:0 alone, 28.0 s with the even split, 22.7 s with
    this split`.

    `most` is the samples per second that the devices can be fed.
    """
    times = ", ".join(
        f"{_time(epoch / min(rate, most))} with {name}" for name, rate in rates.items()
    )
    bound = "; your input pipeline gives them no faster" if max(rates.values()) > most else ""
    return f"an epoch of {epoch:,} samples: {times}{bound}"


def _time(seconds: float) -> str:
    units = {3600.0: "h", 60.0: "min", 0.0: "s"}
    unit = next(unit for unit in units if seconds >= 2 * unit)
    return f"{three_digits(seconds / (unit or 1.0))} {units[unit]}"
