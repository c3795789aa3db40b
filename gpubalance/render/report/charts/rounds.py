"""The search of `balance`: each split that it tried, what was predicted and what was measured."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from gpubalance.numbers.units import format_rate
from gpubalance.render.report.charts.bars import Piece, Row, draw_rows
from gpubalance.render.report.charts.chart import NARROW, Chart, Missing
from gpubalance.render.report.charts.style import BLUE, VERMILLION, legend
from gpubalance.render.report.subject import Subject
from gpubalance.results.plan import Round
from gpubalance.settings.shares import pieces_text
from gpubalance.text import clean

_ID, _TITLE = "rounds", "The search for the split"


def chart(subject: Subject) -> Chart | Missing:
    """Needs a plan of `balance`, which tries splits."""
    balance = subject.plan.balance if subject.plan is not None else None
    rounds = balance.rounds if balance is not None else ()
    if not rounds:
        return Missing(_ID, _TITLE, "only `gpubalance balance` tries splits")
    return Chart(_ID, _TITLE, _text(rounds), lambda width: _draw(rounds, width))


def _text(rounds: tuple[Round, ...]) -> str:
    said = [f"round {one.number}, {one.split}: {_gave(one)}" for one in rounds]
    return f"Each split that was tried, in samples/s: {'; '.join(said)}."


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
        pieces = (Piece(0.0, rate, BLUE),) if one.measured is not None else (Piece(0.0, 0.0, BLUE),)
        marks = ((one.predicted_throughput, VERMILLION, "-"),)
        split = clean(_compact(one), 24 if width <= NARROW else 44)
        gave = "out of memory" if one.measured is None else format_rate(rate)
        rows.append(Row(f"{one.number}. {split}", gave, pieces, marks))
    made, _ = draw_rows(rows, width, "throughput, samples/s", 24)
    predicted = Line2D([], [], color=VERMILLION, linewidth=2.2, label="predicted")
    legend(made, [Patch(facecolor=BLUE, label="measured"), predicted], 2)
    return made
