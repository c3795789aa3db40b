"""A run as text: a line for each window, its summary, and what a step consists of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpubalance.numbers.units import (
    format_bytes,
    format_percent,
    format_rate,
    format_seconds,
)
from gpubalance.planning.parts import SLOW
from gpubalance.render.rates import (
    gain_sentences,
    per_s,
    pipeline_sentences,
    rate_text,
    slowed_text,
    worth_sentences,
)
from gpubalance.render.table import (
    BLANK,
    CUT_SHORT,
    Paragraph,
    TextTable,
    batch_of,
    device_table,
    names_of,
)
from gpubalance.results.plan import Predicted, Share
from gpubalance.results.run import (
    InputPipeline,
    Measurement,
    Replica,
    Run,
    SoloGap,
    StepSpread,
)
from gpubalance.settings.device import Device
from gpubalance.settings.measuring import ON_HELD_BATCHES, OWN_SPLIT, window_place

# A wait or an excess below this fraction of the step is not shown, nor a loss below this fraction
# of the solo sum.
_MIN_FRACTION = 1e-3
REST = "the rest"
_MAX_CAUSES = 4  # rows of `gap_table`, besides the rest


def step_text(step: Run | Predicted, devices: Sequence[Replica | Share]) -> str:
    """`step 718 ms = slowest compute 702 ms + update 3.90 ms + sync 11.9 ms; imbalance 1.007 (…)`.

    Terms may be missing: an update of 0 s; the sync and imbalance of a single device; waits for
    input, unless batches come from the host; rare slow steps, if there were none; and the slowest
    device's wait, if that is at most 0.1 % of the step. The slowest device waits in those steps in
    which, by noise, another device is slower. Compute and update are measured in the stamped steps:
    if these took longer than the other steps, the excess is subtracted.
    """
    step_s = step.step_time_s.median if isinstance(step, Run) else step.step_time_s
    are_several = sum(device.batch > 0 for device in devices) > 1
    slowest = max(devices, key=lambda device: device.compute_s + device.update_s)
    terms = [f"slowest compute {format_seconds(slowest.compute_s)}"]
    if slowest.update_s:
        terms.append(f"update {format_seconds(slowest.update_s)}")
    if isinstance(slowest, Replica) and slowest.wait_s > _MIN_FRACTION * step_s:
        terms.append(f"wait {format_seconds(slowest.wait_s)}")
    if are_several:
        terms.append(f"sync {format_seconds(step.sync_s)}")
    if isinstance(step, Run):
        terms += _measured_terms(step)
    text = f"step {format_seconds(step_s)} = {' + '.join(terms)}"
    if isinstance(step, Run) and step.excess_s > _MIN_FRACTION * step_s:
        text += f" − {format_seconds(step.excess_s)} (timestamped steps were slower)"
    if are_several:
        text += f"; imbalance {step.imbalance:.3f} (1 = they finish together)"
    return text


def _measured_terms(run: Run) -> list[str]:
    """The terms that no prediction has: waiting for input, and what slow steps add to the step."""
    terms = []
    input_s = run.awaited_input_s
    if input_s is not None:
        fraction = format_percent(input_s / run.step_time_s.median, 1)
        terms.append(f"waiting for input {format_seconds(input_s)} ({fraction})")
    if run.slow_s:
        terms.append(f"rare slow steps {format_seconds(run.slow_s)}{_how_rare(run)}")
    return terms


def _how_rare(run: Run) -> str:
    """` (2 of 27 steps timed one by one took over 1.5 × the median)`; empty if that is unknown.

    Stamped steps are timed one by one, the steps between them in groups. So slow steps may all be
    in the groups.
    """
    steps = run.slow_steps
    if steps is None:
        return ""
    if not steps.count:
        return (
            f" (in steps between the {steps.timed} that were timed one by one; none of "
            "those was slow)"
        )
    return (
        f" ({steps.count} of {steps.timed} steps timed one by one took over {SLOW:g} "
        "× the median)"
    )


class Loss(NamedTuple):
    """A cause, and its cost `rate` in samples per second; below 0 it is a gain."""

    cause: str
    rate: float

    @property
    def text(self) -> str:
        """`−38`, or `+38` for a gain, in samples per second."""
        sign = "−" if self.rate >= 0 else "+"
        return f"{sign}{format_rate(abs(self.rate))}"


def all_losses(devices: Sequence[Device], gap: SoloGap) -> list[Loss]:
    """Every cause, in the order that leads from the solo sum to the devices' common throughput."""
    losses = [
        Loss("left out", gap.left_out),
        Loss("not each device's best batch size", gap.batch_sizes),
    ]
    # `gap.slowdown` is in samples per second, like all fields of `gap`.
    for device, lost_rate in zip(devices, gap.slowdown, strict=True):
        how = "slower" if lost_rate >= 0 else "faster"
        losses.append(Loss(f"{device.label} {how} than alone", lost_rate))
    losses.append(Loss("waiting for the slowest device", gap.imbalance))
    losses.append(Loss("summing gradients", gap.sync))
    if gap.slow:
        losses.append(Loss("rare slow steps", gap.slow))
    if gap.without_xla:
        losses.append(Loss("without XLA", gap.without_xla))
    return losses


def large_losses(
    devices: Sequence[Device], gap: SoloGap, maximum: int | None = None
) -> list[Loss]:
    """The losses of at least 0.1 % of the solo sum; with `maximum`, at most so many, the largest.

    The sum of all other losses comes last, as `REST`, if that sum is at least 0.1 % too.
    """
    losses = all_losses(devices, gap)
    minimum = _MIN_FRACTION * gap.solo_sum
    by_size = sorted(losses, key=lambda loss: -abs(loss.rate))
    large = [loss for loss in by_size if abs(loss.rate) >= minimum][:maximum]
    rest = sum(loss.rate for loss in losses if loss not in large)
    shown = [loss for loss in losses if loss in large]
    if abs(rest) >= minimum:
        shown.append(Loss(REST, rest))
    return shown


def gap_table(devices: Sequence[Device], gap: SoloGap) -> Iterator[Paragraph]:
    """Why the devices gave less together than alone: a sum of the largest causes, as a table.

    A plan's summary has it after a balance.
    """
    losses = large_losses(devices, gap, _MAX_CAUSES)
    if not losses:
        return
    rows = [
        ("samples/s, from alone to together", ""),
        ("the devices alone", format_rate(gap.solo_sum)),
    ]
    rows += [(loss.cause, loss.text) for loss in losses]
    rows.append(("together", format_rate(gap.throughput)))
    yield BLANK
    yield TextTable(rows, left=(0,))
    yield BLANK


def window_text(
    number: int, of: int, name: str, devices: Sequence[Device], measured: Measurement
) -> str:
    """`window 1 of 3: GPU:0 [820] 1279 samples/s …` of the run's own split.

    Of another split only the rate: `window 1 of 3, the even split, 694/694: 1834 samples/s`.
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
    run: Run,
    epoch_samples: int | None = None,
    pipeline_after: InputPipeline | None = None,
) -> Iterator[Paragraph]:
    """The answer, where each device's time goes and, with `epoch_samples`, an epoch's time.

    `pipeline_after` is the user's own input pipeline, if that was measured only after the run, as a
    balance does. `run.pipeline` is None unless the pipeline fed the run itself.
    """
    yield from pipeline_sentences(
        run.pipeline,
        run.solo_sum_in_use,
        fed_the_split=True,
        time_scale=run.settings.time_scale,
    )
    yield run_headline(run)
    yield from gain_sentences(run, run.baselines, run.split, verb="gave")
    yield from worth_sentences(run, epoch_samples, pipeline_after)
    yield BLANK
    # The first columns, each with its head and its cells: the devices' names have no head.
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
    """How gradients are summed; no sentence if they are summed exactly and all at once.

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
    # A balance's proof trains on the user's data, but not from the input pipeline.
    if run.settings.data and not run.pipeline:
        where = " on batches held on the devices"
    model = f"model {run.settings.model}{slowed_text(run.settings)}"
    return f"batches {batches}: {rate_text(run.throughput)}{where}, {model}"
