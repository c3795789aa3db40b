"""The charts of splits: a row of bars for each device in a step, each loss, or each split."""

from __future__ import annotations

from gpubalance.numbers.units import (
    format_percent,
    format_rate,
    format_seconds,
    three_digits,
)
from gpubalance.render.rates import per_s
from gpubalance.render.report.charts.chart import Drawing
from gpubalance.render.report.charts.rows import Bar, Key, Row, rows_chart, stacked
from gpubalance.render.report.charts.style import (
    BLUE,
    COMPUTE,
    GREEN,
    INPUT,
    SYNC,
    UPDATE,
    VERMILLION,
    WAIT,
    long_name,
)
from gpubalance.render.report.steps import StepBar, steps_of
from gpubalance.render.step import large_losses
from gpubalance.results.run import Replica
from gpubalance.results.subject import ReportSubject
from gpubalance.settings.batch_split import BatchSplit, pieces_text, share_text

_INPUT = Key("wait for input", INPUT)
_COMPUTE = Key("compute", COMPUTE)
_WAIT = Key("wait", WAIT)
_SYNC = Key("sync", SYNC)
_UPDATE = Key("update", UPDATE)
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
    if subject.run is None and not subject.probed and len(bars[-1].parts) > 1:
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
