"""Each device with a model of its own, alone and at once with the others, as bars."""

from __future__ import annotations

from matplotlib.figure import Figure

from gpubalance.numbers.units import format_percent, format_rate
from gpubalance.render.independent import contention_texts, joint_text
from gpubalance.render.report.charts.bars import Key, Row, draw_rows
from gpubalance.render.report.charts.chart import Drawing
from gpubalance.render.report.charts.style import COMPUTE, WAIT, device_name
from gpubalance.results.independent import Independent
from gpubalance.results.subject import Subject

_GIVEN, _LOST = Key("at once", COMPUTE), Key("less than alone", WAIT)


def chart(subject: Subject) -> Drawing | str:
    """The rates as bars. Needs devices that were measured at once."""
    result = subject.independent
    if result is None or not result.measured:
        return "nothing was measured at once"
    return _text(subject, result), lambda width: _draw(subject, result, width)


def _text(subject: Subject, result: Independent) -> str:
    lines = [
        f"{subject.devices[one.device].label}, batch {one.batch}: {format_rate(one.solo_throughput)} samples/s alone, "
        f"{format_rate(one.throughput)} at once."
        for one in result.measured
    ]
    lines += [f"{text[0].upper()}{text[1:]}." for text in contention_texts(result)]
    if result.joint is not None:
        told = joint_text(result, result.joint)
        lines.append(f"{told[0].upper()}{told[1:]}.")
    return " ".join(lines)


def _draw(subject: Subject, result: Independent, width: int) -> Figure:
    rows = []
    for one in result.measured:
        rate, alone = one.throughput or 0.0, one.solo_throughput or 0.0
        pieces = ((_GIVEN, rate), (_LOST, max(0.0, alone - rate)))
        less = "" if one.contention is None else f", {_less(one.contention)} than alone"
        left = f"{device_name(subject.devices[one.device], width)}, batch {one.batch}"
        rows.append(Row(left, f"{format_rate(rate)}{less}", pieces))
    return draw_rows(rows, width, "samples/s", [_GIVEN, _LOST])


def _less(part: float) -> str:
    return f"{format_percent(abs(part), 1)} {'less' if part >= 0 else 'more'}"
