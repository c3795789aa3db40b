"""Where the distance from the solo sum goes: a bar for each cause that `balance` found."""

from __future__ import annotations

from matplotlib.figure import Figure

from gpubalance.numbers.units import format_rate
from gpubalance.render.report.charts.bars import Key, Row, draw_rows
from gpubalance.render.report.charts.chart import NARROW, Drawing
from gpubalance.render.report.charts.style import GREEN, VERMILLION
from gpubalance.render.solo_gap import Loss, losses
from gpubalance.results.gap import SoloGap
from gpubalance.results.subject import Subject

_LOSS, _GAIN = Key("loss", VERMILLION), Key("gain", GREEN)


def chart(subject: Subject) -> Drawing | str:
    """The causes as bars. Needs a plan of `balance`, which divides the gap."""
    gap = subject.solo_gap
    if gap is None:
        if subject.plan is not None and subject.plan.balance is not None:
            return "what each device gives alone is not known, or the split was not proven by a run"
        return "`gpubalance balance` divides it, in the plan that it writes"
    parts = [*losses(subject.devices, gap)]
    return _text(gap, parts), lambda width: _draw(gap, parts, width)


def _text(gap: SoloGap, parts: list[Loss]) -> str:
    said = ", ".join(f"{part.cause} {part.text}" for part in parts)
    return (
        f"The devices give {format_rate(gap.solo_sum)} samples/s alone, in total, and {format_rate(gap.throughput)} "
        f"together. Between the two, in samples/s: {said or 'nothing'}. A part below 0 is lost, one above is a gain."
    )


def _draw(gap: SoloGap, parts: list[Loss], width: int) -> Figure:
    narrow = width <= NARROW
    ends = f"{format_rate(gap.solo_sum)} alone" if narrow else f"{format_rate(gap.solo_sum)} samples/s alone"
    rows = [Row(ends, f"{format_rate(gap.throughput)} together", heading=True)]
    for part in parts:
        share = f"{100 * part.rate / gap.solo_sum:.2g} %".replace("-", "−")
        left = "batches not the best alone" if narrow and part.cause.startswith("batches") else part.cause
        right = part.text if narrow else f"{part.text} samples/s ({share} of the solo sum)"
        rows.append(Row(left, right, ((_LOSS if part.rate >= 0 else _GAIN, part.rate),)))
    return draw_rows(rows, width, "lost, samples/s")
