"""The charts that are bars of a table: each is a row for a line of it, under the words that name
it.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.numbers.units import (
    format_bytes,
    format_percent,
    format_rate,
    format_seconds,
    three_digits,
)
from gpubalance.render.layers import blocks_text
from gpubalance.render.plan import losses
from gpubalance.render.rates import per_s
from gpubalance.render.report.charts.chart import Drawing
from gpubalance.render.report.charts.rows import Bar, Key, Row, rows_chart, stacked
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
    device_name,
)
from gpubalance.render.report.steps import steps_of
from gpubalance.results.independent import Independent
from gpubalance.results.layers import Layers
from gpubalance.results.queue import Queue
from gpubalance.results.subject import ReportSubject
from gpubalance.settings.device import Device
from gpubalance.settings.shares import Shares, pieces_text, share_text
from gpubalance.text import clean

_GIB = 2.0**30
_LONG_UNITS, _GAP = (("h", 3600.0), ("min", 60.0)), 0.003
_WELL, _FAILED = Key("succeeded", BLUE), Key("failed", VERMILLION)
_PARTS = {
    "input_wait_s": Key("wait for input", INPUT),
    "compute_s": Key("compute", COMPUTE),
    "wait_s": Key("wait", WAIT),
    "sync_s": Key("sync", SYNC),
    "update_s": Key("update", UPDATE),
}
_TASKS = {
    "forward": Key("forward", FORWARD),
    "backward": Key("backward", BACKWARD),
    "transfer": Key("transfer", TRANSFER),
    "update": Key("update", UPDATE),
    "bubble": Key("bubble", BUBBLE),
}
_LOSS, _GAIN = Key("loss", VERMILLION), Key("gain", GREEN)
_MEASURED, _PREDICTED = Key("measured", BLUE), Key("predicted", VERMILLION, "-")
_PEAK, _LIMIT = Key("peak", BLUE), Key("limit", INK, "-")
_GIVEN, _LOST = Key("at once", COMPUTE), Key("less than alone", WAIT)
_GOODPUT, _SPENT = Key("goodput", GREEN), Key("throughput", BLUE, "-")


def _named(devices: Sequence[Device], device: int, what: str) -> str:
    """`GPU:0, batch 820, GeForce GTX 1080 Ti`: what a narrow chart leaves out stands last."""
    found = devices[device]
    return f"{found.label}, {what}, {clean(found.name, 26)}"


def steps(subject: ReportSubject) -> Drawing | str:
    """The parts of a step, the even split above the chosen one; a plan's are predicted. A probe has
    no such step.
    """
    found = steps_of(subject)
    if not found:
        return "a probe measures each device alone, and waiting is what devices do together"
    scale, unit = (1.0, "s") if max(step.step_time_s for step in found) >= 10 else (1e3, "ms")
    rows = []
    for step in found:
        rows.append(Row(f"{step.title} {Shares(step.batches)}", f"{per_s(step.throughput)}"))
        for part in step.parts:
            left = _named(
                subject.devices, part.device, f"batch {share_text(part.batch, part.micro_batch)}"
            )
            waits = f"waits {format_seconds(part.wait_s)}" if part.wait_s else "no wait"
            times_s = {
                key: getattr(part, name, getattr(step, name, 0.0)) for name, key in _PARTS.items()
            }
            rows.append(
                Row(
                    left, waits, stacked({key: seconds * scale for key, seconds in times_s.items()})
                )
            )
    notes = ["A device that has computed waits for the slowest, then all share gradients."]
    if subject.run is None and not subject.probed and len(found[-1].parts) > 1:
        notes.append(
            "How long each computes in the even split is in their probe: give the probe's file too."
        )
    first, last = sum(found[0].batches), sum(found[-1].batches)
    if first != last:
        notes.append(
            f"Their global batches differ: {first} and {last}; a larger one alone is faster."
        )
    return rows_chart(rows, f"time in a step, {unit}", " ".join(notes))


def gap(subject: ReportSubject) -> Drawing | str:
    """Where the distance from the solo sum goes. Needs a plan of `balance`, which divides it."""
    balance = subject.plan.balance if subject.plan else None
    if balance is None:
        return "`gpubalance balance` divides it, in the plan that it writes"
    found = balance.solo_gap
    if found is None:
        return "what each device gives alone is not known, or the split was not proven by a run"
    rows = [Row(f"{per_s(found.solo_sum)} alone", f"{format_rate(found.throughput)} together")]
    for loss in losses(subject.devices, found):
        part = format_percent(loss.rate / found.solo_sum, 1).replace("-", "−")
        rows.append(
            Row(
                loss.cause,
                f"{loss.text}, {part}",
                [Bar(_LOSS if loss.rate >= 0 else _GAIN, 0.0, loss.rate)],
            )
        )
    return rows_chart(
        rows, "lost, samples/s", "Lost on the way, in samples/s and as a part of the solo sum."
    )


def rounds(subject: ReportSubject) -> Drawing | str:
    """Each split that `balance` tried, with its predicted and measured throughput."""
    rows, balance = [], subject.plan.balance if subject.plan else None
    for one in balance.rounds if balance else ():
        name = f"{one.number}. {'/'.join(map(pieces_text, one.batches, one.micro_batches))}"
        rate = one.measured.throughput.median if one.measured else 0.0
        gave = format_rate(rate) if one.measured else "out of memory"
        rows.append(
            Row(name, gave, [Bar(_MEASURED, 0.0, rate)], {_PREDICTED: one.predicted_throughput})
        )
    return (
        rows_chart(rows, "throughput, samples/s")
        if rows
        else "only `gpubalance balance` tries splits"
    )


def goodput(subject: ReportSubject) -> Drawing | str:
    """What samples are worth. Only for a plan with a noise scale; no other result misses it."""
    scale = subject.plan.predicted.noise_scale if subject.plan else None
    if subject.plan is None or scale is None:
        return ""
    rows = []
    for one in subject.plan.predicted.by_goodput:
        worth = f"a sample is worth {format_percent(one.efficiency)}"
        split = f"{one.of} {'/'.join(map(str, one.batches))}"
        rows.append(Row(split, worth, [Bar(_GOODPUT, 0.0, one.goodput)], {_SPENT: one.throughput}))
    note = f"By a noise scale of {three_digits(scale)} samples."
    return rows_chart(rows, "throughput and goodput, samples/s", note)


def memory(subject: ReportSubject) -> Drawing | str:
    """Each device's memory against its limit. Needs the peaks of what was run."""
    rows = []
    for one in subject.ran:
        peak, probe = one.memory_peak_bytes, subject.probes[one.device]
        if peak is None:
            continue
        # What the device's allocator may take, or else all of the device's memory.
        known = probe.batch_limit.memory_bytes if probe and probe.batch_limit else None
        limit = subject.devices[one.device].memory_bytes if known is None else known
        of = f" of {format_bytes(limit)}, {format_percent(peak / limit)}" if limit else ""
        # A stage has the micro-batches of all.
        sized = one if hasattr(one, "batch") else subject.result
        batch = getattr(sized, "micro_batch", 0) or getattr(sized, "batch", 0)
        name = _named(subject.devices, one.device, f"batch {batch}")
        marks = {_LIMIT: limit / _GIB} if limit else {}
        rows.append(Row(name, f"{format_bytes(peak)}{of}", [Bar(_PEAK, 0.0, peak / _GIB)], marks))
    if rows:
        return rows_chart(rows, "memory, GiB")
    if not subject.ran:
        return (
            "nothing was run: a probe goes up to the limit of each device, which is in its tables"
        )
    return "no device reported its memory use"


def at_once(result: Independent) -> Drawing | str:
    """Each device with a model of its own, alone and at once. Needs devices that were measured at
    once.
    """
    if not result.measured:
        return "nothing was measured at once"
    rows = []
    for one in result.measured:
        rate, alone = one.throughput or 0.0, one.solo_throughput or 0.0
        less = (
            ""
            if one.contention is None
            else f", {format_percent(one.contention, 1)} less than alone"
        )
        name = _named(result.devices, one.device, f"batch {one.batch}")
        rows.append(
            Row(
                name,
                f"{format_rate(rate)}{less}",
                stacked({_GIVEN: rate, _LOST: max(0.0, alone - rate)}),
            )
        )
    return rows_chart(rows, "samples/s")


def stages(result: Layers) -> Drawing:
    """A step of a cut model: each device's forward, backward, transfer, update and bubble add up to
    it.
    """
    rows = []
    for stage in result.stages:
        pieces = {key: 1e3 * max(0.0, getattr(stage, f"{name}_s")) for name, key in _TASKS.items()}
        busy = format_percent(stage.busy_s / result.step_time_s.median)
        rows.append(
            Row(
                _named(result.devices, stage.device, f"blocks {blocks_text(stage)}"),
                f"works {busy}",
                stacked(pieces),
            )
        )
    return rows_chart(rows, "time in a step, ms")


def timeline(result: Layers) -> Drawing:
    """One step of a cut model, task by task."""
    rows = []
    for stage in result.stages:
        spans = [
            Bar(
                _TASKS[kind],
                1e3 * start_s,
                1e3 * (end_s - start_s),
                str(number) if number is not None else "",
            )
            for kind, start_s, end_s, number in result.timeline.spans(stage.device)
        ]
        rows.append(Row(device_name(result.devices[stage.device]), bars=spans))
    note = (
        "With the numbers of the micro-batches. Where nothing is drawn, a device had nothing to "
        "do: the bubble."
    )
    return rows_chart(rows, "time since the step began, ms", note)


def commands(result: Queue) -> Drawing | str:
    """What each device of a queue ran, and when."""
    if not result.makespan_s:
        return ""
    unit, scale = next((one for one in _LONG_UNITS if result.makespan_s >= 2 * one[1]), ("s", 1.0))
    gap_s = _GAP * result.makespan_s
    rows = []
    for number, device in enumerate(result.devices):
        tries = [(each, one) for each in result.commands if not each.resumed for one in each.tries]
        spans = [
            Bar(
                _FAILED if one.exit else _WELL,
                one.start_s / scale,
                (one.duration_s - gap_s) / scale,
                str(each.number),
            )
            for each, one in tries
            if one.device == number
        ]
        rows.append(Row(device_name(device), bars=spans))
    note = (
        "Where nothing is drawn, a device had nothing to do, or what was left ended sooner on "
        "another."
    )
    return rows_chart(rows, f"time since the queue began, {unit}", note)
