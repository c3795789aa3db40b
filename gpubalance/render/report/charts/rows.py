"""The charts that are bars of a table: each is a row for a line of it, under the words that name it."""

from __future__ import annotations

from collections.abc import Iterator

from gpubalance.numbers.units import format_bytes, format_percent, format_rate, format_seconds, three_digits
from gpubalance.render.independent import contention_texts, joint_text
from gpubalance.render.layers import blocks_text, times_of
from gpubalance.render.probe import OUTCOMES
from gpubalance.render.report.charts.bars import Key, Row, bars
from gpubalance.render.report.charts.chart import Drawing
from gpubalance.render.report.charts.style import (
    BACKWARD,
    BLUE,
    BUBBLE,
    COMPUTE,
    FORWARD,
    GREEN,
    INK,
    INPUT,
    SYNC,
    TRANSFER,
    UPDATE,
    VERMILLION,
    WAIT,
)
from gpubalance.render.report.steps import Step, steps_of, why_no_even
from gpubalance.render.solo_gap import losses
from gpubalance.results.probe import DeviceProbe
from gpubalance.results.subject import Subject
from gpubalance.settings.shares import Shares, pieces_text, share_text
from gpubalance.text import clean

_GIB = 2.0**30
_COMPUTE, _WAIT, _SYNC = Key("compute", COMPUTE), Key("wait", WAIT), Key("sync", SYNC)
_UPDATE, _INPUT = Key("update", UPDATE), Key("wait for input", INPUT)
_LOSS, _GAIN = Key("loss", VERMILLION), Key("gain", GREEN)
_MEASURED, _PREDICTED = Key("measured", BLUE), Key("predicted", VERMILLION, "-")
_PEAK, _LIMIT, _NEEDED = Key("peak", BLUE), Key("limit", INK, "-"), Key("first that fails", VERMILLION, ":")
_GIVEN, _LOST = Key("at once", COMPUTE), Key("less than alone", WAIT)
_FITS, _FAILS = Key("trains", BLUE), Key("does not", VERMILLION)
_GOODPUT, _SPENT = Key("goodput", GREEN), Key("throughput", BLUE)
_STAGES = (
    Key("forward", FORWARD),
    Key("backward", BACKWARD),
    Key("transfer", TRANSFER),
    Key("update", UPDATE),
    Key("bubble", BUBBLE),
)


def _named(subject: Subject, device: int, what: str) -> str:
    """`GPU:0, batch 820, GeForce GTX 1080 Ti`: what a narrow chart leaves out stands last."""
    found = subject.devices[device]
    return f"{found.label}, {what}, {clean(found.name, 26)}"


def steps(subject: Subject) -> Drawing | str:
    """The parts of a step, the even split above the chosen one; a plan's are predicted. A probe has no such step."""
    found = steps_of(subject)
    if not found:
        return "a probe measures each device alone, and waiting is what devices do together"
    scale, unit = (1.0, "s") if max(step.step_time_s for step in found) >= 10 else (1e3, "ms")
    batches = [sum(step.batches) for step in found]
    differ = f"Their global batches differ: {batches[0]} and {batches[-1]}; a larger one alone is faster."
    notes = ("A device that has computed waits for the slowest, then all share gradients.", why_no_even(subject))
    note = " ".join(filter(None, (*notes, differ if batches[0] != batches[-1] else "")))
    rows = [row for step in found for row in _of_step(subject, step, scale)]
    return bars(rows, f"time in a step, {unit}", note)


def _of_step(subject: Subject, step: Step, scale: float) -> Iterator[Row]:
    yield Row(f"{step.title} {Shares(step.batches)}", f"{format_rate(step.throughput)} samples/s")
    for part in step.parts:
        times_s = (
            (_INPUT, step.input_wait_s),
            (_COMPUTE, part.compute_s),
            (_WAIT, part.wait_s),
            (_SYNC, step.sync_s),
            (_UPDATE, part.update_s),
        )
        left = _named(subject, part.device, f"batch {share_text(part.batch, part.micro_batch)}")
        waits = f"waits {format_seconds(part.wait_s)}" if part.wait_s else "no wait"
        shown = tuple((key, seconds * scale) for key, seconds in times_s)
        yield Row(left, waits, shown)


def gap(subject: Subject) -> Drawing | str:
    """Where the distance from the solo sum goes. Needs a plan of `balance`, which divides it."""
    found = subject.solo_gap
    if found is None:
        if subject.plan is not None and subject.plan.balance is not None:
            return "what each device gives alone is not known, or the split was not proven by a run"
        return "`gpubalance balance` divides it, in the plan that it writes"
    head = Row(f"{format_rate(found.solo_sum)} samples/s alone", f"{format_rate(found.throughput)} together")
    rows = [
        Row(
            part.cause,
            f"{part.text}, {format_percent(part.rate / found.solo_sum, 1).replace('-', '−')}",
            ((_LOSS if part.rate >= 0 else _GAIN, part.rate),),
        )
        for part in losses(subject.devices, found)
    ]
    return bars([head, *rows], "lost, samples/s", "Lost on the way, in samples/s and as a part of the solo sum.")


def rounds(subject: Subject) -> Drawing | str:
    """Each split that `balance` tried, with its predicted and measured throughput."""
    tried = subject.plan.balance.rounds if subject.plan is not None and subject.plan.balance is not None else ()
    rows = []
    for one in tried:
        pieces = map(pieces_text, one.batches, one.micro_batches)
        rate = one.measured.throughput.median if one.measured is not None else 0.0
        gave = "out of memory" if one.measured is None else format_rate(rate)
        marks = ((_PREDICTED, one.predicted_throughput),)
        rows.append(Row(f"{one.number}. {'/'.join(pieces)}", gave, ((_MEASURED, rate),), marks))
    return bars(rows, "throughput, samples/s") if rows else "only `gpubalance balance` tries splits"


def trials(subject: Subject) -> Drawing | str:
    """Every batch that was tried for each device's limit, in order. Needs a probe, and a device with a limit."""
    rows = []
    for i, one in enumerate(subject.probes):
        tried = one.batch_limit.trials if one is not None and one.batch_limit is not None else ()
        rows += [Row(subject.devices[i].label, clean(subject.devices[i].name, 26))] if tried else []
        for number, trial in enumerate(tried, 1):
            key = _FITS if trial.outcome == "fits" else _FAILS
            rows.append(Row(f"{number}. batch {trial.batch}", OUTCOMES[trial.outcome], ((key, float(trial.batch)),)))
    if rows:
        return bars(rows, "batch, samples")
    return "no device's limit was searched for" if subject.probed else "it is in the probe of these devices"


def goodput(subject: Subject) -> Drawing | str:
    """What samples are worth. Only for a plan with a noise scale; no other result misses it."""
    plan = subject.plan
    if plan is None or plan.predicted.noise_scale is None:
        return ""
    rows = [
        Row(
            f"{one.of} {'/'.join(map(str, one.batches))}",
            f"a sample is worth {format_percent(one.efficiency)}",
            ((_GOODPUT, one.goodput),),
            ((_SPENT._replace(line="-"), one.throughput),),
        )
        for one in plan.predicted.by_goodput
    ]
    note = f"By a noise scale of {three_digits(plan.predicted.noise_scale)} samples."
    return bars(rows, "throughput and goodput, samples/s", note)


def memory(subject: Subject) -> Drawing | str:
    """Each device's memory against its limit. Needs the peaks of what was run, or of a probe's largest batches."""
    rows = [row for peak in _peaks(subject) for row in _of_memory(subject, *peak)]
    if rows:
        return bars(rows, "memory, GiB")
    if subject.plan is not None and subject.run is None:
        return "a plan that was not run has taken no memory: `gpubalance run --plan` measures it"
    return "no device told how much memory it took"


def _of_memory(subject: Subject, device: int, batch: int, peak: int | None, needed: int | None) -> Iterator[Row]:
    if peak is None:
        return
    # What the device's allocator may take, or else all of the device's memory.
    one = subject.probes[device]
    known = one.batch_limit.memory_bytes if one is not None and one.batch_limit is not None else None
    limit = subject.devices[device].memory_bytes if known is None else known
    marks = tuple((key, size / _GIB) for key, size in ((_LIMIT, limit), (_NEEDED, needed)) if size)
    of = f" of {format_bytes(limit)}, {format_percent(peak / limit)}" if limit else ""
    left = _named(subject, device, f"batch {batch}")
    yield Row(left, f"{format_bytes(peak)}{of}", ((_PEAK, peak / _GIB),), marks)


def _peaks(subject: Subject) -> Iterator[tuple[int, int, int | None, int | None]]:
    """Each device, its largest batch or micro-batch, its memory peak, and what the batch asked for that failed."""
    if subject.run is not None:
        yield from ((one.device, one.micro_batch, one.memory_peak_bytes, None) for one in subject.run.replicas)
    elif subject.independent is not None:
        yield from ((one.device, one.batch, one.memory_peak_bytes, None) for one in subject.independent.replicas)
    elif subject.layers is not None:
        size = subject.layers.micro_batch
        yield from ((one.device, size, one.memory_peak_bytes, None) for one in subject.layers.stages)
    elif subject.kind == "probe":
        for i, one in enumerate(subject.probes):
            peaks = _by_batch(one) if one is not None else {}
            if one is not None and peaks:
                needed = one.batch_limit.needed_bytes if one.batch_limit is not None else None
                yield i, max(peaks), peaks[max(peaks)], needed


def _by_batch(one: DeviceProbe) -> dict[int, int]:
    """The memory of each batch that trained."""
    tried = one.batch_limit.trials if one.batch_limit else ()
    known = [(trial.batch, trial.memory_peak_bytes) for trial in tried if trial.outcome == "fits"]
    known += [(point.batch, point.memory_peak_bytes) for point in one.curve]
    return {batch: peak for batch, peak in known if peak is not None}


def at_once(subject: Subject) -> Drawing | str:
    """Each device with a model of its own, alone and at once. Needs devices that were measured at once."""
    result = subject.independent
    if result is None or not result.measured:
        return "nothing was measured at once"
    rows = []
    for one in result.measured:
        rate, alone = one.throughput or 0.0, one.solo_throughput or 0.0
        pieces = ((_GIVEN, rate), (_LOST, max(0.0, alone - rate)))
        less = "" if one.contention is None else f", {format_percent(one.contention, 1)} less than alone"
        rows.append(Row(_named(subject, one.device, f"batch {one.batch}"), f"{format_rate(rate)}{less}", pieces))
    told = [*contention_texts(result), *([joint_text(result, result.joint)] if result.joint else [])]
    return bars(rows, "samples/s", " ".join(f"{text[0].upper()}{text[1:]}." for text in told))


def stages(subject: Subject) -> Drawing | str:
    """A step of a cut model: each device's forward, backward, transfer, update and bubble add up to it."""
    result = subject.layers
    if result is None:
        return ""
    rows = []
    for stage in result.stages:
        busy = format_percent(stage.busy_s / result.step_time_s.median)
        pieces = tuple((key, 1e3 * max(0.0, one)) for key, one in zip(_STAGES, times_of(stage), strict=True))
        rows.append(Row(_named(subject, stage.device, f"blocks {blocks_text(stage)}"), f"works {busy}", pieces))
    bubble, bound = format_percent(result.bubble, 1), format_percent(result.bubble_bound, 1)
    note = f"On average {bubble} of a step is bubble and transfer; at best it is {bound}."
    return bars(rows, "time in a step, ms", note)
