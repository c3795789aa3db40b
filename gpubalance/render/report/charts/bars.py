"""The bar charts: of splits, a row for each device, and of devices, a row for each figure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from gpubalance.numbers.units import (
    format_bytes,
    format_percent,
    format_rate,
    format_seconds,
    three_digits,
)
from gpubalance.render.layers import blocks_text
from gpubalance.render.rates import per_s
from gpubalance.render.report.charts.chart import (
    BACKWARD,
    BLUE,
    BUBBLE,
    COMPUTE,
    FORWARD,
    GREEN,
    HATCHES,
    INK,
    INPUT,
    MUTED,
    NARROW,
    PAPER,
    SLOW,
    SYNC,
    TRANSFER,
    UPDATE,
    VERMILLION,
    WAIT,
    Drawing,
    device_name,
    legend,
    long_name,
    new_figure,
)
from gpubalance.render.report.leads import StepBar, steps_of
from gpubalance.render.run import large_losses
from gpubalance.render.table import shorten
from gpubalance.results.independent import Independent
from gpubalance.results.layers import Layers
from gpubalance.results.queue import Queue
from gpubalance.results.run import Replica
from gpubalance.results.subject import ReportSubject
from gpubalance.settings.batch_split import BatchSplit, pieces_text, share_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_ROW_PX = 40
_HEADING_PX = 30
_REST_PX = 52  # the axis and its label
_LETTER_PX = 7.2
_NUMBER_PX = 11  # the least width of a bar with a number in it
_BAR = 0.42  # of a row; its text takes the rest
_SEEN = 1e-4  # of the axis: no shorter bar is in the legend
_MOST_ROWS = 100  # of a picture that one still looks at


class Key(NamedTuple):
    """The legend's name for a bar or a mark."""

    name: str
    colour: str


class Bar(NamedTuple):
    """A part of a row, in the axis' unit, from its start; to the left if the length is below 0."""

    key: Key
    start: float
    length: float
    number: str = ""


class Row(NamedTuple):
    """Bars, and `markers` across the row, under a text at the left and one at the right."""

    left: str
    right: str = ""
    bars: Sequence[Bar] = ()
    markers: Mapping[Key, float] = MappingProxyType({})

    @property
    def is_heading(self) -> bool:
        """Whether the row is only text."""
        return not self.bars and not self.markers

    @property
    def height(self) -> float:
        """The height, where that of a row of bars is 1."""
        if self.is_heading:
            return _HEADING_PX / _ROW_PX
        return 1.0


def stacked(lengths: Mapping[Key, float]) -> list[Bar]:
    """Bars of these lengths that follow each other from 0."""
    bars = []
    start = 0.0
    for key, length in lengths.items():
        bars.append(Bar(key, start, length))
        start += length
    return bars


def rows_chart(rows: Sequence[Row], label: str, note: str = "") -> Drawing:
    """The rows over an axis with that label, under the note."""
    if len(rows) > _MOST_ROWS:
        note = f"{note} Only the first {_MOST_ROWS} of {len(rows)} are drawn.".lstrip()
    return note, lambda width: _draw(rows[:_MOST_ROWS], width, label)


def _draw(rows: Sequence[Row], width: int, label: str) -> Figure:
    """Draws the rows from top to bottom over one axis, which includes 0, with a legend."""
    low, high = _range(rows)
    wide = high - low or 1.0
    keys: set[Key] = set()
    for row in rows:
        keys.update(bar.key for bar in row.bars if abs(bar.length) > _SEEN * wide)
        keys.update(row.markers)
    height = sum(row.height for row in rows) * _ROW_PX + _REST_PX
    figure, (axes,) = new_figure(width, height)
    left = low
    if low < 0:
        left -= 0.02 * wide
    axes.set_xlim(left, low + 1.02 * wide)
    top = 0.0
    for row in rows:
        text_height = 0.44
        if row.is_heading:
            text_height = row.height - 0.1
        _draw_text(axes, row, top - text_height, int(width / _LETTER_PX))
        _draw_bars(axes, row, top - 0.5 - _BAR / 2, keys, wide * _NUMBER_PX / width)
        top -= row.height
    axes.set_ylim(top, 0.0)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False, axis="y")
    axes.axvline(0.0, color=MUTED, linewidth=0.8)
    axes.set_xlabel(label)
    if width <= NARROW and len(keys) > 3:
        legend(figure, 2)
    elif len(keys) > 1:
        legend(figure, len(keys))
    return figure


def _range(rows: Sequence[Row]) -> tuple[float, float]:
    """The first and last place of a bar or mark, or 0."""
    places = [0.0]
    for row in rows:
        places += row.markers.values()
        for bar in row.bars:
            places += [bar.start, bar.start + bar.length]
    return min(places), max(places)


def _draw_text(axes: Axes, row: Row, bottom: float, letters: int) -> None:
    # Text is placed by the width of the axes, bars by their values.
    across = axes.get_yaxis_transform()
    left = shorten(row.left, max(8, letters - len(row.right) - 2))
    weight = "normal"
    if row.is_heading:
        weight = "bold"
    axes.text(
        0.0, bottom, left, transform=across, ha="left", va="bottom", weight=weight
    )
    axes.text(1.0, bottom, row.right, transform=across, ha="right", va="bottom")


def _draw_bars(
    axes: Axes, row: Row, middle: float, keys: set[Key], minimum: float
) -> None:
    """Bars and marks; `minimum` is the length of a bar that has room for its number."""
    for key, start, length, number in row.bars:
        if length:
            look: dict[str, Any] = {
                "facecolor": key.colour,
                "edgecolor": key.colour,
                "linewidth": 0.5,
            }
            if key in keys:
                look["label"] = key.name
            if key.colour in HATCHES:
                look["hatch"] = HATCHES[key.colour]
                look["edgecolor"] = PAPER
            axes.barh(middle, length, left=start, height=_BAR, **look)
        if number and length >= minimum:
            at = start + length / 2
            axes.text(
                at, middle, number, ha="center", va="center", color=PAPER, fontsize=8
            )
    for key, value in row.markers.items():
        ends = [middle - _BAR / 2 - 0.05, middle + _BAR / 2]
        axes.plot([value, value], ends, color=key.colour, linewidth=2.2, label=key.name)


_INPUT = Key("wait for input", INPUT)
_COMPUTE = Key("compute", COMPUTE)
_WAIT = Key("wait", WAIT)
_SYNC = Key("sync", SYNC)
_UPDATE = Key("update", UPDATE)
_SLOW = Key("rare slow steps", SLOW)
_LOSS = Key("loss", VERMILLION)
_GAIN = Key("gain", GREEN)
_MEASURED = Key("measured", BLUE)
_PREDICTED = Key("predicted", VERMILLION)
_GOODPUT = Key("goodput", GREEN)
_THROUGHPUT = Key("throughput", BLUE)


def steps(subject: ReportSubject) -> Drawing | str:
    """The parts of a step, the even split above the chosen one; a plan's are predicted."""
    bars = steps_of(subject)
    if not bars:
        return "a probe measures each device alone: there is no waiting"
    scale = 1e3
    unit = "ms"
    if max(step.step_time_s for step in bars) >= 10:
        scale = 1.0
        unit = "s"
    rows = []
    for step in bars:
        rows.append(
            Row(f"{step.title} {BatchSplit(step.batches)}", per_s(step.throughput))
        )
        rows += [_step_row(subject, step, part, scale) for part in step.parts]
    notes = [
        "Each device computes, waits for the slowest, then all exchange gradients."
    ]
    has_no_probe = subject.run is None and not (subject.probed or subject.is_of_table)
    if has_no_probe and len(bars[-1].parts) > 1:
        notes.append(
            "The even split's compute times are in the devices' probe: give the "
            "probe's file too."
        )
    first = sum(bars[0].batches)
    last = sum(bars[-1].batches)
    if first != last:
        notes.append(
            f"Their global batches differ: {first} and {last}; a larger one is faster "
            "by itself."
        )
    return rows_chart(rows, f"time in a step, {unit}", " ".join(notes))


def _step_row(
    subject: ReportSubject, step: StepBar, part: Replica, scale: float
) -> Row:
    batch = f"batch {share_text(part.batch, part.micro_batch)}"
    waits = f"waits {format_seconds(part.wait_s)}" if part.wait_s else "no wait"
    times = {
        _INPUT: step.input_wait_s * scale,
        _COMPUTE: part.compute_s * scale,
        _WAIT: part.wait_s * scale,
        _SYNC: step.sync_s * scale,
        _UPDATE: part.update_s * scale,
        _SLOW: step.slow_s * scale,
    }
    return Row(long_name(subject.devices[part.device], batch), waits, stacked(times))


def gap(subject: ReportSubject) -> Drawing | str:
    """Where the distance from the solo sum goes. Needs a plan of `balance`, which divides it."""
    balance = subject.plan.balance if subject.plan else None
    if balance is None:
        return "`gpubalance balance` writes it into its plan"
    solo_gap = balance.solo_gap
    if solo_gap is None:
        return "what each device gives alone is not known, or the split was not proven by a run"
    together = f"{format_rate(solo_gap.throughput)} together"
    rows = [Row(f"{per_s(solo_gap.solo_sum)} alone", together)]
    for loss in large_losses(subject.devices, solo_gap):
        part = format_percent(loss.rate / solo_gap.solo_sum, 1).replace("-", "−")
        key = _LOSS if loss.rate >= 0 else _GAIN
        bar = Bar(key, 0.0, loss.rate)
        rows.append(Row(loss.cause, f"{loss.text}, {part}", [bar]))
    note = (
        "Lost throughput, in samples/s and as a fraction of the solo sum (what all "
        "devices give alone, added up)."
    )
    return rows_chart(rows, "lost, samples/s", note)


def rounds(subject: ReportSubject) -> Drawing | str:
    """Each split that `balance` tried, with its predicted and measured throughput."""
    balance = subject.plan.balance if subject.plan else None
    if balance is None or not balance.rounds:
        return "only `gpubalance balance` tries splits"
    rows = []
    for tried in balance.rounds:
        batches = "/".join(map(pieces_text, tried.batches, tried.micro_batches))
        rate = 0.0
        text = "out of memory"
        if tried.measured:
            rate = tried.measured.throughput.median
            text = format_rate(rate)
        markers = {_PREDICTED: tried.predicted_throughput}
        rows.append(
            Row(
                f"{tried.number}. {batches}", text, [Bar(_MEASURED, 0.0, rate)], markers
            )
        )
    return rows_chart(rows, "throughput, samples/s")


def goodput(subject: ReportSubject) -> Drawing | str:
    """What samples are worth. Only for a plan with a noise scale; no other result misses it."""
    if subject.plan is None or subject.plan.predicted.noise_scale is None:
        return ""
    predicted = subject.plan.predicted
    rows = []
    for split in predicted.by_goodput:
        name = f"{split.of} {'/'.join(map(str, split.batches))}"
        worth = f"efficiency {format_percent(split.efficiency)}"
        markers = {_THROUGHPUT: split.throughput}
        rows.append(Row(name, worth, [Bar(_GOODPUT, 0.0, split.goodput)], markers))
    note = (
        "With a gradient noise scale of "
        f"{three_digits(subject.plan.predicted.noise_scale)} samples. Efficiency is "
        "the progress per sample, 100 % in a very small batch."
    )
    return rows_chart(rows, "throughput and goodput, samples/s", note)


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
