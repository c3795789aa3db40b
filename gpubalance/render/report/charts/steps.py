"""The step as bars: the even split above the chosen one, the problem above its solution."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gpubalance.numbers.units import format_rate, format_seconds
from gpubalance.render.report.charts.bars import Piece, Row, draw_rows
from gpubalance.render.report.charts.chart import NARROW, Chart, Missing
from gpubalance.render.report.charts.style import COMPUTE, HATCHES, INPUT, PAPER, SYNC, WAIT, device_name, legend
from gpubalance.render.report.steps import Part, Step, steps_of, why_no_even
from gpubalance.render.report.subject import Subject
from gpubalance.settings.shares import Shares, share_text

_ID, _TITLE = "step", "Where a step's time goes"


def chart(subject: Subject) -> Chart | Missing:
    """Shows the predicted step of a plan that was not run. A probe has no such step."""
    steps = steps_of(subject)
    if not steps:
        return Missing(_ID, _TITLE, "a probe measures each device alone, and waiting is what devices do together")
    return Chart(_ID, _TITLE, _text(subject, steps), lambda width: _draw(subject, steps, width))


def _text(subject: Subject, steps: tuple[Step, ...]) -> str:
    lines = ["One step of each split; a device that has computed waits for the slowest, then all share gradients."]
    for step in steps:
        parts = [
            f"{subject.devices[p.device].label} computes {format_seconds(p.compute_s)} and waits "
            f"{format_seconds(p.wait_s)}"
            for p in step.parts[:8]
        ]
        more = f", and {len(step.parts) - 8} more" if len(step.parts) > 8 else ""
        lines.append(
            f"{step.title} {Shares(step.batches)}, {format_rate(step.throughput)} samples/s: "
            f"{', '.join(parts)}{more}; sync {format_seconds(step.sync_s)}."
        )
    if why_no_even(subject):
        lines.append(why_no_even(subject))
    return " ".join(lines)


def _draw(subject: Subject, steps: tuple[Step, ...], width: int) -> Figure:
    scale, unit = (1.0, "s") if max(step.step_time_s for step in steps) >= 10 else (1e3, "ms")
    rows: list[Row] = []
    for step in steps:
        rate = f"{format_rate(step.throughput)} samples/s"
        splits = str(Shares(step.batches))
        title = step.title if width <= NARROW or len(splits) > 24 else f"{step.title} {splits}"
        rows.append(Row(title, rate, heading=True))
        rows += [_row(subject, step, part, scale, width) for part in step.parts]
    wanted = [
        COMPUTE,
        WAIT,
        SYNC,
        *([INPUT] if any(step.input_wait_s > 1e-4 * step.step_time_s for step in steps) else []),
    ]
    made, _ = draw_rows(rows, width, f"time in a step, {unit}", 24)
    names = {COMPUTE: "compute", WAIT: "wait", SYNC: "sync", INPUT: "wait for input"}
    handles = [Patch(facecolor=c, edgecolor=PAPER, hatch=HATCHES.get(c, ""), label=names[c]) for c in wanted]
    legend(made, handles, 2 if width <= NARROW and len(handles) > 3 else len(handles))
    return made


def _row(subject: Subject, step: Step, part: Part, scale: float, width: int) -> Row:
    device = subject.devices[part.device]
    batch = share_text(part.batch, part.micro_batch)
    name = device_name(device, width)
    lengths = ((INPUT, step.input_wait_s), (COMPUTE, part.compute_s), (WAIT, part.wait_s), (SYNC, step.sync_s))
    pieces, at = [], 0.0
    for colour, seconds in lengths:
        pieces.append(Piece(at, seconds * scale, colour))
        at += seconds * scale
    waits = f"waits {format_seconds(part.wait_s)}" if part.wait_s else "waits for none"
    return Row(f"{name}, batch {batch}", waits, tuple(pieces))
