"""The step as bars: the even split above the chosen one, the problem above its solution."""

from __future__ import annotations

from matplotlib.figure import Figure

from gpubalance.numbers.units import format_rate, format_seconds
from gpubalance.render.report.charts.bars import Key, Row, draw_rows
from gpubalance.render.report.charts.chart import NARROW, Drawing
from gpubalance.render.report.charts.style import COMPUTE, INPUT, SYNC, UPDATE, WAIT, device_name
from gpubalance.render.report.steps import Part, Step, steps_of, why_no_even
from gpubalance.results.subject import Subject
from gpubalance.settings.shares import Shares, share_text

_COMPUTE, _WAIT, _SYNC = Key("compute", COMPUTE), Key("wait", WAIT), Key("sync", SYNC)
_UPDATE, _INPUT = Key("update", UPDATE), Key("wait for input", INPUT)


def chart(subject: Subject) -> Drawing | str:
    """The parts of a step as bars, predicted for a plan that was not run. A probe has no such step."""
    steps = steps_of(subject)
    if not steps:
        return "a probe measures each device alone, and waiting is what devices do together"
    return _text(subject, steps), lambda width: _draw(subject, steps, width)


def _text(subject: Subject, steps: tuple[Step, ...]) -> str:
    lines = ["One step of each split; a device that has computed waits for the slowest, then all share gradients."]
    for step in steps:
        parts = [
            f"{subject.devices[p.device].label} computes {format_seconds(p.compute_s)} and waits "
            f"{format_seconds(p.wait_s)}{f', and updates {format_seconds(p.update_s)}' if p.update_s else ''}"
            for p in step.parts[:8]
        ]
        more = f", and {len(step.parts) - 8} more" if len(step.parts) > 8 else ""
        lines.append(
            f"{step.title} {Shares(step.batches)}, {format_rate(step.throughput)} samples/s: "
            f"{', '.join(parts)}{more}; sync {format_seconds(step.sync_s)}{_waited(step)}."
        )
    batches = [sum(step.batches) for step in steps]
    if batches[0] != batches[-1]:
        lines.append(f"Their global batches differ: {batches[0]} and {batches[-1]}; a larger one alone is faster.")
    if why_no_even(subject):
        lines.append(why_no_even(subject))
    return " ".join(lines)


def _waited(step: Step) -> str:
    return f"; before that all wait {format_seconds(step.input_wait_s)} for input" if _waits_for_input(step) else ""


def _waits_for_input(step: Step) -> bool:
    return step.input_wait_s > 1e-4 * step.step_time_s


def _draw(subject: Subject, steps: tuple[Step, ...], width: int) -> Figure:
    scale, unit = (1.0, "s") if max(step.step_time_s for step in steps) >= 10 else (1e3, "ms")
    rows: list[Row] = []
    for step in steps:
        rate = f"{format_rate(step.throughput)} samples/s"
        splits = str(Shares(step.batches))
        title = step.title if width <= NARROW or len(splits) > 24 else f"{step.title} {splits}"
        rows.append(Row(title, rate, heading=True))
        rows += [_row(subject, step, part, scale, width) for part in step.parts]
    waits_for_input = any(map(_waits_for_input, steps))
    updates = any(part.update_s for step in steps for part in step.parts)
    keys = [_COMPUTE, _WAIT, _SYNC, *([_UPDATE] if updates else []), *([_INPUT] if waits_for_input else [])]
    return draw_rows(rows, width, f"time in a step, {unit}", keys)


def _row(subject: Subject, step: Step, part: Part, scale: float, width: int) -> Row:
    name = device_name(subject.devices[part.device], width)
    times_s = (
        (_INPUT, step.input_wait_s),
        (_COMPUTE, part.compute_s),
        (_WAIT, part.wait_s),
        (_SYNC, step.sync_s),
        (_UPDATE, part.update_s),
    )
    waits = f"waits {format_seconds(part.wait_s)}" if part.wait_s else "no wait"
    pieces = tuple((key, seconds * scale) for key, seconds in times_s)
    return Row(f"{name}, batch {share_text(part.batch, part.micro_batch)}", waits, pieces)
