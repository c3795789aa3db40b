"""A run as text: one line for each window, and its summary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpubalance.numbers.units import format_bytes, format_percent, format_rate, format_seconds
from gpubalance.render.fields import device_grid
from gpubalance.render.rates import largest_even_text, other_batch, pipeline_told, rate_text
from gpubalance.render.table import BLANK, CUT_SHORT, Grid, Part, shorten
from gpubalance.render.worth import worth_text
from gpubalance.results.run import Measurement, Pipeline, Run, StepSpread, alone_in_use
from gpubalance.settings.device import Device
from gpubalance.settings.shares import share_text

_NAME_WIDTH = 22
_SHOWN = 1e-3  # of a step: what is less changes none of its figures


def window_text(number: int, of: int, name: str, devices: Sequence[Device], measured: Measurement) -> str:
    """One line: `GPU:0 [820] 1280 samples/s …` for each device and the total; only the total for the even split."""
    rate = f"{format_rate(measured.throughput.median)} samples/s"
    if name:
        batches = " ".join(map(str, measured.batches))
        what = f"[{batches}] with batches held on the devices" if name == "held" else f"the {name} split [{batches}]"
        return f"window {number} of {of}, {what}: {rate}"
    parts = []
    for device, replica in zip(devices, measured.replicas, strict=True):
        batch, own_rate = share_text(replica.batch, replica.micro_batch), format_rate(replica.throughput)
        compute, wait = format_seconds(replica.compute_s), format_seconds(replica.wait_s)
        update = f" update {format_seconds(replica.update_s)}" if replica.update_s else ""
        memory = "" if replica.memory_peak_bytes is None else f" {format_bytes(replica.memory_peak_bytes)}"
        parts.append(f"{device.label} [{batch}] {own_rate} samples/s compute {compute}{update} wait {wait}{memory}")
    step = f"step {format_seconds(measured.step_time_s.median)} sync {format_seconds(measured.sync_s)}"
    return f"window {number} of {of}: {'; '.join([*parts, f'total [{measured.global_batch}] {rate} {step}'])}"


def run_told(run: Run, epoch: int | None = None, pipeline: Pipeline | None = None) -> Iterator[Part]:
    """The answer and where each device's time goes; with `epoch`, the time of that many samples.

    `pipeline` is the user's own if it was measured after the run.
    """
    yield from _answer(run)
    yield from worth_text(run, epoch, pipeline)
    yield BLANK
    yield _devices(run)
    idle = [d.label for d, batch in zip(run.devices, run.batches, strict=True) if not batch]
    yield f"{', '.join(idle)}: no samples, left out" if idle else ""
    several = len(run.replicas) > 1
    slowest = max(run.replicas, key=lambda replica: replica.busy_s)
    step = step_text(
        run.step_time_s.median,
        slowest.compute_s,
        slowest.update_s,
        run.sync_s if several else None,
        slowest.wait_s,
        run.awaited_input_s,
        run.slow_s,
    )
    yield f"{step}; {imbalance_text(run.imbalance)}" if several else step
    yield spread_text(run.step_spread) if run.step_spread else ""
    yield "" if run.complete else CUT_SHORT


def step_text(
    step_s: float,
    compute_s: float,
    update_s: float | None,
    sync_s: float | None,
    wait_s: float = 0.0,
    input_wait_s: float | None = None,
    slow_s: float = 0.0,
) -> str:
    """`step 718 ms = slowest compute 702 ms + update 3.90 ms + sync 11.9 ms`, for the slowest device.

    Left out are an update of no or unknown duration, the sync of a single device, which has none, and what a step does
    not wait for. With noise the slowest device waits in those steps in which another one is the slowest.
    """
    wait = wait_s if wait_s > _SHOWN * step_s else None
    parts = (("slowest compute", compute_s), ("update", update_s or None), ("wait", wait), ("sync", sync_s))
    told = [f"{name} {format_seconds(seconds)}" for name, seconds in parts if seconds is not None]
    if input_wait_s is not None:
        told.append(f"waiting for input {format_seconds(input_wait_s)} ({format_percent(input_wait_s / step_s, 1)})")
    if slow_s:
        told.append(f"rare slow steps {format_seconds(slow_s)}")
    return f"step {format_seconds(step_s)} = {' + '.join(told)}"


def spread_text(spread: StepSpread) -> str:
    """`batches differ in shape: half of the steps take up to 41 ms, 95 % up to 77 ms; …`."""
    half, most = format_seconds(spread.p50_s), format_seconds(spread.p95_s)
    return f"batches differ in shape: half of the steps take up to {half}, 95 % up to {most}; rates use the mean"


def imbalance_text(imbalance: float) -> str:
    """`imbalance 1.007 (1 = they finish together)`."""
    return f"imbalance {imbalance:.3f} (1 = they finish together)"


def _answer(run: Run) -> Iterator[str]:
    """What the split gives, compared with the even split and with the devices alone."""
    batches = " ".join(map(str, run.batches))
    if run.split.accumulates:
        batches += f" in micro-batches {' '.join(map(str, run.micro_batches))}"
    yield from pipeline_told(run.pipeline, run.baselines.solo_sum, in_front=True)
    held = " on batches held on the devices" if run.settings.data and not run.pipeline else ""
    yield f"batches {batches}: {rate_text(run.throughput)}{held}, model {run.settings.model}"
    even, largest, interval = run.baselines.even, run.baselines.largest_even, run.speedup_ci95
    if even is not None and run.split.of_used == even.split:
        yield f"this is the even split, {even.split}"
    elif even is not None and run.speedup_over_even is not None:
        known = f" ({interval[0]:.3f} to {interval[1]:.3f})" if interval else ""
        rate = f"{format_rate(even.throughput.median)} samples/s{other_batch(run.global_batch, even.global_batch)}"
        yield f"{run.speedup_over_even:.3f} × the even split {even.split}{known}, which gave {rate}"
    if largest is not None:
        yield largest_even_text(largest.split, largest.throughput.median)
    if run.scaling_efficiency is not None:
        yield f"{format_percent(run.scaling_efficiency, 1)} of {alone_text(run)}"


def alone_text(run: Run) -> str:
    """`what the devices gave alone, 2286 samples/s in total`, and that of those in use if some are left out."""
    text = f"what the devices gave alone, {format_rate(run.baselines.solo_sum)} samples/s in total"
    if all(run.batches):
        return text
    return f"{text}, {format_rate(alone_in_use(run.baselines.solo_best, run.batches))} of those in use"


def _devices(run: Run) -> Grid:
    """A row for each replica: its rate, where its time goes, and its memory."""
    leads = {
        "": lambda replica: shorten(run.devices[replica.device].name, _NAME_WIDTH),
        "batch": lambda replica: share_text(replica.batch, replica.micro_batch),
    }
    return device_grid(run.devices, run.replicas, leads)
