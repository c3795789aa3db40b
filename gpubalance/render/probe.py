"""A probe as text: a device's growing table, each trial of its limit, and the summary."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from gpubalance.numbers.units import (
    format_bytes,
    format_flops,
    format_percent,
    format_rate,
    format_seconds,
)
from gpubalance.render.rates import pipeline_told
from gpubalance.render.sparkline import sparkline
from gpubalance.render.table import BLANK, WIDTH, Part, shorten, table
from gpubalance.results.probe import BatchLimit, CurvePoint, DeviceProbe, Probe, Trial
from gpubalance.settings.device import Device

_NAME_WIDTH = 40
_MOST_WHOLE = 4
_BAR_WIDTH = 24
_OTHER_COLUMNS = 39
_EIGHTHS = " ▏▎▍▌▋▊▉"
OUTCOMES = {
    "fits": "fits",
    "oom": "out of memory",
    "margin": "leaves less than the margin",
    "crash": "its worker died",
    "deadline": "its worker fell silent",
}


def curve_lines(points: Sequence[CurvePoint], width: int = WIDTH) -> list[str]:
    """One row for each batch size, with a bar for its throughput; marks say what is uncertain about it.

    On a narrow terminal the bar takes what the other columns leave, or is left out.
    """
    best = max(point.throughput.median for point in points)
    longest = max(len(_marks(point)) for point in points)
    room = min(_BAR_WIDTH, width - _OTHER_COLUMNS - (longest + 2 if longest else 0))
    bars = [""] if room > 0 else []
    rows: list[tuple[str, ...]] = [("batch", "samples/s", "step", "memory", *bars, "")]
    for point in sorted(points, key=lambda p: p.batch):
        rate = point.throughput.median
        rows.append(
            (
                str(point.batch),
                format_rate(rate),
                format_seconds(point.step_time_s.median),
                format_bytes(point.memory_peak_bytes),
                *(bar(rate / best, room) for _ in bars),
                _marks(point),
            )
        )
    return table(rows, left=(4, 5), indent="  ")


def bar(part: float, width: int = _BAR_WIDTH) -> str:
    """A bar that is full at 1, in eighths of a character."""
    eighths = round(max(0.0, min(1.0, part)) * max(0, width) * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _marks(point: CurvePoint) -> str:
    throttled = (point.telemetry.throttle_reasons or ()) if point.telemetry else ()
    marks = [*([] if point.steady else ["not steady"]), *([] if point.precise else ["± over 1 %"]), *throttled]
    return ", ".join(marks)


def point_text(device: Device, point: CurvePoint) -> str:
    """`GPU:0 batch 512: 1263 samples/s, 405 ms, 5.81 GiB`."""
    memory = [] if point.memory_peak_bytes is None else [format_bytes(point.memory_peak_bytes)]
    rate = f"{format_rate(point.throughput.median)} samples/s"
    parts = [rate, format_seconds(point.step_time_s.median), *memory, *([_marks(point)] if _marks(point) else [])]
    return f"{device.label} batch {point.batch}: {', '.join(parts)}"


def trial_text(device: Device, trial: Trial) -> str:
    """`GPU:0 tried 1040 (the smallest that should fail): out of memory, 1.3 s`."""
    seconds = format_seconds(trial.seconds)
    return f"{device.label} tried {trial.batch} ({trial.reason}): {OUTCOMES[trial.outcome]}, {seconds}"


def device_line(device: Device) -> str:
    """The title of a device's table."""
    return f"{device.label}  {shorten(device.name, _NAME_WIDTH)}"


def probe_told(probe: Probe) -> Iterator[Part]:
    """What each device can do, without the curves, which are in the result.

    More than four devices get one line each.
    """
    yield from pipeline_told(probe.pipeline, sum(one.solo_best.throughput for one in probe.probes if one.solo_best))
    for one in probe.probes:
        yield from _device(probe.devices[one.device], one, whole=len(probe.probes) <= _MOST_WHOLE)
    held = ", on batches of --data held on it" if probe.settings.data else ""
    yield f"model {probe.settings.model}, each device alone{held}"
    if not probe.complete:
        yield BLANK
        yield "This probe is incomplete: --resume continues it."


def _device(device: Device, one: DeviceProbe, *, whole: bool) -> Iterator[str]:
    best = _best(one) or ("" if one.curve or one.batch_limit or one.failures else "nothing was measured yet")
    yield f"{device_line(device)}{': ' if best else ''}{best}"
    compute = "" if device.simulated else _compute(one)
    facts = (_curve(one), _limit(one.batch_limit), _model(one), compute) if whole else ()
    yield from (f"  {fact}" for fact in facts if fact)
    yield from (f"  failed: {failure.message}" for failure in one.failures)


def _curve(one: DeviceProbe) -> str:
    """The throughputs over the batch sizes as ticks, from 0 to the best."""
    points = sorted(one.curve, key=lambda point: point.batch)
    if len(points) < 2:
        return ""
    ticks = sparkline([point.throughput.median for point in points], least=0.0)
    unsteady = sum(not point.steady for point in points)
    widest = max(point.half_width for point in points)
    known = f", each within ± {format_percent(widest, 1)}" if math.isfinite(widest) else ""
    marked = f"; {unsteady} of {len(points)} not steady" if unsteady else ""
    return f"{ticks} samples/s at batch {points[0].batch} to {points[-1].batch}{known}{marked}"


def _limit(limit: BatchLimit | None) -> str:
    if limit is None:
        return ""
    tried = _tried(limit)
    if limit.fits is None:
        return f"batch limit: not even {limit.fails} fits{tried}"
    if limit.fails is None:
        return f"batch limit: none found up to batch {limit.max_batch}{tried}"
    why = next((t.outcome for t in reversed(limit.trials) if t.batch == limit.fails and t.outcome != "fits"), "oom")
    return f"batch limit: {limit.fits} trains, {limit.fails} does not ({OUTCOMES[why]}){tried}"


def _tried(limit: BatchLimit) -> str:
    failed = sum(trial.outcome != "fits" for trial in limit.trials)
    count = len(limit.trials)
    return f"; {count} {'try' if count == 1 else 'tries'}, {failed} failed" if count else ""


def _best(one: DeviceProbe) -> str:
    if one.solo_best is None or one.sensible is None:
        return ""
    best = f"{format_rate(one.solo_best.throughput)} samples/s at batch {one.solo_best.batch}"
    return best if one.sensible.batch == one.solo_best.batch else f"{best}, 95 % of it from {one.sensible.batch}"


def _model(one: DeviceProbe) -> str:
    model = one.step_time_model
    if model is None:
        return ""
    line = f"{format_seconds(model.alpha_s)} + {format_seconds(model.beta_s)} · batch"
    off = f"off by {format_percent(model.residual, 1)} at most"
    update = f"; {format_seconds(one.update_s)} of it is the update" if one.update_s else ""
    if model.planned_with == "curve":
        return f"step time: no line ({line} is {off}), so plans use the measured curve{update}"
    sizes = len(one.curve)
    decided = {None: "", True: f": {sizes} sizes are enough", False: f"; {sizes} sizes were measured"}[one.on_line]
    return f"step time: {line}, {off}{decided}{update}"


def _compute(one: DeviceProbe) -> str:
    if one.flops_per_s is None:
        return ""
    mfu = f", {format_percent(one.mfu)} of its peak (MFU)" if one.mfu is not None else ""
    joule = f", {one.samples_per_joule:.3g} samples a joule" if one.samples_per_joule is not None else ""
    return f"compute: {format_flops(one.flops_per_s)} at its best{mfu}{joule}"
