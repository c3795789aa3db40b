"""The search of `balance`: each split that it tried, with its predicted and measured throughput."""

from __future__ import annotations

from matplotlib.figure import Figure

from gpubalance.numbers.units import format_rate
from gpubalance.render.report.charts.bars import Key, Row, draw_rows
from gpubalance.render.report.charts.chart import NARROW, Drawing
from gpubalance.render.report.charts.style import BLUE, VERMILLION
from gpubalance.results.plan import Round
from gpubalance.results.subject import Subject
from gpubalance.settings.shares import pieces_text
from gpubalance.text import clean

_MEASURED, _PREDICTED = Key("measured", BLUE), Key("predicted", VERMILLION, "-")


def chart(subject: Subject) -> Drawing | str:
    """The rounds as bars. Needs a plan of `balance`, which tries splits."""
    balance = subject.plan.balance if subject.plan is not None else None
    if balance is None or not balance.rounds:
        return "only `gpubalance balance` tries splits"
    rounds = balance.rounds
    said = [f"round {one.number}, {one.split}: {_gave(one)}" for one in rounds]
    text = f"Each split that was tried, in samples/s: {'; '.join(said)}."
    return text, lambda width: _draw(rounds, width)


def _gave(one: Round) -> str:
    if one.measured is None:
        return "out of memory"
    return f"{format_rate(one.measured.throughput.median)}, predicted {format_rate(one.predicted_throughput)}"


def _compact(one: Round) -> str:
    """`8×216/624`."""
    pairs = zip(one.batches, one.micro_batches, strict=True)
    return "/".join(pieces_text(batch, micro) for batch, micro in pairs)


def _draw(rounds: tuple[Round, ...], width: int) -> Figure:
    rows = []
    for one in rounds:
        rate = one.measured.throughput.median if one.measured is not None else 0.0
        split = clean(_compact(one), 24 if width <= NARROW else 44)
        gave = "out of memory" if one.measured is None else format_rate(rate)
        marks = ((_PREDICTED, one.predicted_throughput),)
        rows.append(Row(f"{one.number}. {split}", gave, ((_MEASURED, rate),), marks))
    return draw_rows(rows, width, "throughput, samples/s", [_MEASURED, _PREDICTED])
