"""A run as text: one line for each window, and its summary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpubalance.numbers.units import format_bytes, format_seconds
from gpubalance.render.rates import (
    gain_sentences,
    per_s,
    pipeline_sentences,
    rate_text,
    slowed_text,
    worth_sentences,
)
from gpubalance.render.step import step_text
from gpubalance.render.table import (
    BLANK,
    CUT_SHORT,
    Paragraph,
    batch_of,
    device_table,
    names_of,
)
from gpubalance.results.run import InputPipeline, Measurement, Run, StepSpread
from gpubalance.settings.device import Device
from gpubalance.settings.measuring import ON_HELD_BATCHES, OWN_SPLIT, window_place


def window_text(
    number: int, of: int, name: str, devices: Sequence[Device], measured: Measurement
) -> str:
    """`window 1 of 3: GPU:0 [820] 1279 samples/s …` of the run's own split.

    Of the others only the rate: `window 1 of 3, the even split, 694/694: 1834 samples/s`.
    """
    head = window_place(number, of)
    if name == OWN_SPLIT:
        return f"{head}: {measured_text(devices, measured)}"
    which = f"the {name} split"
    if name == ON_HELD_BATCHES:
        which = "the split with batches held on the devices"
    return f"{head}, {which}, {measured.split}: {per_s(measured.throughput.median)}"


def measured_text(devices: Sequence[Device], measured: Measurement) -> str:
    """`GPU:0 [820] 1279 samples/s compute 620 ms; …; total [1388] 2164 samples/s step 641 ms …`."""
    texts = []
    for replica in measured.replicas:
        batch = batch_of(replica)
        rate = per_s(replica.throughput)
        compute = format_seconds(replica.compute_s)
        texts.append(
            f"{devices[replica.device].label} [{batch}] {rate} compute {compute}"
        )
    rate = per_s(measured.throughput.median)
    step = format_seconds(measured.step_time_s.median)
    sync = format_seconds(measured.sync_s)
    texts.append(f"total [{measured.global_batch}] {rate} step {step} sync {sync}")
    return "; ".join(texts)


def run_summary(
    run: Run, epoch: int | None = None, pipeline_after: InputPipeline | None = None
) -> Iterator[Paragraph]:
    """The answer and where each device's time goes; with `epoch`, the time of that many samples.

    `pipeline_after` is the user's own if it was measured after the run, as a balance does.
    """
    yield from pipeline_sentences(
        run.pipeline,
        run.baselines.solo_sum,
        fed_the_split=True,
        time_scale=run.settings.time_scale,
    )
    yield run_headline(run)
    yield from gain_sentences(run, run.baselines, run.split, verb="gave")
    yield from worth_sentences(run, epoch, pipeline_after)
    yield BLANK
    # The head of each first column, and its cells: devices' names have no head.
    first_columns = {"": names_of(run.devices), "batch": batch_of}
    yield device_table(run.devices, run.replicas, first_columns)
    idle = [run.label(device) for device, batch in enumerate(run.batches) if not batch]
    if idle:
        yield f"{', '.join(idle)}: no samples, left out"
    yield step_text(run, run.replicas)
    yield from _summing(run)
    if run.step_spread is not None:
        yield _spread_text(run.step_spread)
    if not run.complete:
        yield CUT_SHORT


def _summing(run: Run) -> Iterator[str]:
    """How gradients are summed, if part of that is hidden behind compute or it is not exact.

    `pack_bytes` is None for a device alone, and 0 if all gradients were summed at once.
    """
    if run.pack_bytes:
        packs = format_bytes(run.pack_bytes)
        yield (
            "sync is what is not hidden behind compute: gradients are summed in "
            f"several all-reduces, each of up to {packs}"
        )
    if run.settings.gradients == "bf16" and run.pack_bytes is not None:
        how = "gradients are sent and summed as bfloat16"
        yield f"{how}, which is not exact: gpubalance guide exactness"


def _spread_text(spread: StepSpread) -> str:
    p50 = format_seconds(spread.p50_s)
    p95 = format_seconds(spread.p95_s)
    text = "batches differ in shape"
    if p50 == p95:
        return f"{text}: their steps take the same time, {p50}"
    return f"{text}: half of the steps take up to {p50}, 95 % up to {p95}; rates use the mean"


def run_headline(run: Run) -> str:
    """`batches 820 568: 2166 samples/s ± 0.0 %, model small`."""
    batches = " ".join(map(str, run.batches))
    if run.split.accumulates:
        batches += f" in micro-batches {' '.join(map(str, run.micro_batches))}"
    where = ""
    # The user's data, but not from the input pipeline: a balance's proof.
    if run.settings.data and not run.pipeline:
        where = " on batches held on the devices"
    model = f"model {run.settings.model}{slowed_text(run.settings)}"
    return f"batches {batches}: {rate_text(run.throughput)}{where}, {model}"
