"""Where the distance from the solo sum goes: a bar for each cause that `balance` found."""

from __future__ import annotations

from matplotlib.figure import Figure

from gpubalance.numbers.units import format_rate
from gpubalance.render.report.charts.bars import Piece, Row, draw_rows
from gpubalance.render.report.charts.chart import NARROW, Chart, Missing
from gpubalance.render.report.charts.style import GREEN, VERMILLION
from gpubalance.render.report.subject import Subject
from gpubalance.render.solo_gap import Loss, losses
from gpubalance.results.gap import SoloGap

_ID, _TITLE = "gap", "Where the distance from the solo sum goes"


def chart(subject: Subject) -> Chart | Missing:
    """Needs a plan of `balance`, which divides the gap."""
    gap = subject.solo_gap
    if gap is None:
        why = "`gpubalance balance` divides it, in the plan that it writes"
        if subject.plan is not None and subject.plan.balance is not None:
            why = "what each device gives alone is not known, or the split was not proven by a run"
        return Missing(_ID, _TITLE, why)
    parts = losses(subject.devices, gap)
    return Chart(_ID, _TITLE, _text(gap, parts), lambda width: _draw(gap, parts, width))


def _text(gap: SoloGap, parts: tuple[Loss, ...]) -> str:
    said = ", ".join(f"{part.cause} {_lost(part.rate)}" for part in parts if part.rate)
    return (
        f"The devices give {format_rate(gap.solo_sum)} samples/s alone, in sum, and {format_rate(gap.throughput)} "
        f"together. Between the two, in samples/s: {said or 'nothing'}. A part below 0 is lost, one above is a gain."
    )


def _lost(rate: float) -> str:
    return f"−{format_rate(rate)}" if rate >= 0 else f"+{format_rate(-rate)}"


def _draw(gap: SoloGap, parts: tuple[Loss, ...], width: int) -> Figure:
    ends = f"{format_rate(gap.solo_sum)} alone" if width <= NARROW else f"{format_rate(gap.solo_sum)} samples/s alone"
    rows = [Row(ends, f"{format_rate(gap.throughput)} together", heading=True)]
    for part in parts:
        if not part.rate:
            continue
        share = f"{100 * part.rate / gap.solo_sum:.2g} %".replace("-", "−")
        colour = VERMILLION if part.rate >= 0 else GREEN
        right = _lost(part.rate) if width <= NARROW else f"{_lost(part.rate)} samples/s ({share} of the solo sum)"
        rows.append(Row(_cause(part.cause, width), right, (Piece(0.0, part.rate, colour),)))
    made, _ = draw_rows(rows, width, "lost, samples/s", 0)
    return made


def _cause(cause: str, width: int) -> str:
    return "batches not the best alone" if width <= NARROW and cause.startswith("batches") else cause
