"""The charts with a row of bars for each device: its memory, its throughput, or what it did."""

from __future__ import annotations

from collections import defaultdict

from gpubalance.numbers.units import format_bytes, format_percent, format_rate
from gpubalance.render.layers import blocks_text
from gpubalance.render.report.charts.chart import Drawing
from gpubalance.render.report.charts.rows import Bar, Key, Row, rows_chart, stacked
from gpubalance.render.report.charts.style import (
    BACKWARD,
    BLUE,
    BUBBLE,
    COMPUTE,
    FORWARD,
    INK,
    TRANSFER,
    UPDATE,
    VERMILLION,
    WAIT,
    device_name,
    long_name,
)
from gpubalance.results.independent import Independent
from gpubalance.results.layers import Layers
from gpubalance.results.queue import Queue
from gpubalance.results.subject import ReportSubject

_GIB = 2.0**30
_PAUSE = 0.003  # of the makespan: what is left between two commands
_LONG_UNITS = (("min", 60.0), ("h", 3600.0))
_PEAK = Key("peak", BLUE)
_LIMIT = Key("limit", INK)
_AT_ONCE = Key("at once", COMPUTE)
_LESS = Key("less than alone", WAIT)
_TASKS = {
    "forward": Key("forward", FORWARD),
    "backward": Key("backward", BACKWARD),
    "transfer": Key("transfer", TRANSFER),
    "update": Key("update", UPDATE),
    "bubble": Key("bubble", BUBBLE),
}
_WELL = Key("succeeded", BLUE)
_FAILED = Key("failed", VERMILLION)


def memory(subject: ReportSubject) -> Drawing | str:
    """Each device's memory against its limit. Needs the peaks of what was run."""
    rows = []
    for part in subject.ran:
        peak = part.memory_peak_bytes
        if peak is None:
            continue
        device = subject.devices[part.device]
        probe = subject.probes[part.device]
        # What the device's allocator may take, or else all of the device's memory.
        limit = device.memory_bytes
        if probe and probe.batch_limit and probe.batch_limit.memory_bytes is not None:
            limit = probe.batch_limit.memory_bytes
        # A stage has the micro-batches of all.
        sized = part if hasattr(part, "batch") else subject.result
        batch = getattr(sized, "micro_batch", 0) or getattr(sized, "batch", 0)
        bars = [Bar(_PEAK, 0.0, peak / _GIB)]
        text = format_bytes(peak)
        markers = {}
        if limit:
            text += f" of {format_bytes(limit)}, {format_percent(peak / limit)}"
            markers[_LIMIT] = limit / _GIB
        rows.append(Row(long_name(device, f"batch {batch}"), text, bars, markers))
    if rows:
        return rows_chart(rows, "memory, GiB")
    if subject.ran:
        return "no device reported its memory use"
    return (
        "nothing was run; a probe goes up to each device's limit, which is in its "
        "tables"
    )


def at_once(result: Independent) -> Drawing | str:
    """Each device with a model of its own, alone and at once, if that was measured."""
    if not result.measured:
        return "the devices were not measured at the same time"
    rows = []
    for replica in result.measured:
        rate = replica.throughput or 0.0
        alone = replica.solo_throughput or 0.0
        text = format_rate(rate)
        if replica.contention is not None:
            text += f", {format_percent(replica.contention, 1)} less than alone"
        name = long_name(result.devices[replica.device], f"batch {replica.batch}")
        bars = stacked({_AT_ONCE: rate, _LESS: max(0.0, alone - rate)})
        rows.append(Row(name, text, bars))
    return rows_chart(rows, "samples/s")


def stages(result: Layers) -> Drawing:
    """A step of a cut model: what each device does in it, which adds up to it."""
    rows = []
    for stage in result.stages:
        name = long_name(result.devices[stage.device], f"blocks {blocks_text(stage)}")
        works = f"works {format_percent(stage.busy_s / result.step_time_s.median)}"
        times = {}
        for task, key in _TASKS.items():
            times[key] = 1e3 * max(0.0, getattr(stage, f"{task}_s"))
        rows.append(Row(name, works, stacked(times)))
    return rows_chart(rows, "time in a step, ms")


def timeline(result: Layers) -> Drawing:
    """One step of a cut model, task by task."""
    rows = []
    for stage in result.stages:
        bars = []
        for kind, start_s, end_s, micro_batch in result.timeline.spans(stage.device):
            number = "" if micro_batch is None else str(micro_batch)
            bars.append(
                Bar(_TASKS[kind], 1e3 * start_s, 1e3 * (end_s - start_s), number)
            )
        rows.append(Row(device_name(result.devices[stage.device]), bars=bars))
    numbers = "With the numbers of the micro-batches."
    note = f"{numbers} Gaps are idle time: the bubble."
    return rows_chart(rows, "time since the step began, ms", note)


def commands(result: Queue) -> Drawing | str:
    """What each device of a queue ran, and when."""
    if not result.makespan_s:
        return ""
    unit = "s"
    unit_s = 1.0
    for long_unit, long_unit_s in _LONG_UNITS:
        if result.makespan_s >= 2 * long_unit_s:
            unit = long_unit
            unit_s = long_unit_s
    pause_s = _PAUSE * result.makespan_s
    bars: dict[int, list[Bar]] = defaultdict(list)
    for command in result.commands:
        if command.resumed:
            continue
        for tried in command.tries:
            key = _WELL if tried.exit == 0 else _FAILED
            length = (tried.duration_s - pause_s) / unit_s
            bar = Bar(key, tried.start_s / unit_s, length, str(command.number))
            bars[tried.device].append(bar)
    rows = []
    for number, device in enumerate(result.devices):
        rows.append(Row(device_name(device), bars=bars[number]))
    idle = "a device had no command, or another one would have finished the rest sooner"
    note = f"Gaps: {idle}."
    return rows_chart(rows, f"time since the queue began, {unit}", note)
