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
from gpubalance.render.rates import per_s, pipeline_told
from gpubalance.render.table import BLANK, WIDTH, Part, shorten, sparkline, table
from gpubalance.results.probe import (
    BatchLimit,
    CurvePoint,
    DeviceProbe,
    Probe,
    StepTimeModel,
    Trial,
)
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
    """One row for each batch size, with a bar for its throughput; marks say what is uncertain about
    it.

    On a narrow terminal the bar takes what the other columns leave, or is left out.
    """
    best = max(point.throughput.median for point in points)
    longest = max(len(_marks(point)) for point in points)
    room = max(0, min(_BAR_WIDTH, width - _OTHER_COLUMNS - (longest + 2 if longest else 0)))
    heads = ("batch", "samples/s", "step", "memory")
    rows = [(*heads, *([""] if room else []), "")]
    for point in sorted(points, key=lambda p: p.batch):
        bars = [_bar(point.throughput.median / best, room)] if room else []
        rows.append((str(point.batch), *_figures(point), *bars, _marks(point)))
    return table(rows, left=(4, 5), indent="  ")


def _figures(point: CurvePoint) -> tuple[str, str, str]:
    memory = format_bytes(point.memory_peak_bytes)
    return format_rate(point.throughput.median), format_seconds(point.step_time_s.median), memory


def _bar(part: float, width: int) -> str:
    """A bar that is full at 1, in eighths of a character."""
    eighths = round(part * width * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _marks(point: CurvePoint) -> str:
    throttled = (point.telemetry.throttle_reasons or ()) if point.telemetry else ()
    doubts = {"not steady": point.steady, "± over 1 %": point.precise}
    return ", ".join([*(doubt for doubt, without in doubts.items() if not without), *throttled])


def point_text(device: Device, point: CurvePoint) -> str:
    """`GPU:0 batch 512: 1263 samples/s, 405 ms, 5.81 GiB`."""
    rate, step, memory = _figures(point)
    known = [
        f"{rate} samples/s",
        step,
        memory if point.memory_peak_bytes is not None else "",
        _marks(point),
    ]
    return f"{device.label} batch {point.batch}: {', '.join(filter(None, known))}"


def trial_text(device: Device, trial: Trial) -> str:
    """`GPU:0 tried 1040 (the smallest that should fail): out of memory, 1.3 s`."""
    gave = f"{OUTCOMES[trial.outcome]}, {format_seconds(trial.seconds)}"
    return f"{device.label} tried {trial.batch} ({trial.reason}): {gave}"


def device_line(device: Device) -> str:
    """The title of a device's table."""
    return f"{device.label}  {shorten(device.name, _NAME_WIDTH)}"


def probe_told(probe: Probe) -> Iterator[Part]:
    """What each device can do, without the curves, which are in the result.

    More than four devices get one line each.
    """
    yield from pipeline_told(probe.pipeline, _total(probe))
    yield probe_headline(probe)
    for one in probe.probes:
        if one.same_as is None:
            yield from _device(
                probe.devices[one.device], one, whole=len(probe.probes) <= _MOST_WHOLE
            )
        else:
            yield not_probed_text(probe.label(one.device), one.same_as)
    if not probe.complete:
        yield BLANK
        yield "This probe is incomplete: --resume continues it."


def not_probed_text(label: str, same_as: str) -> str:
    """`GPU:1: not probed: equal to GPU:0; --each probes it`."""
    return f"{label}: not probed: equal to {same_as}; --each probes it"


def probe_headline(probe: Probe) -> str:
    """`each device alone: 2255 samples/s in total, model small`."""
    held = ", on batches of --data held on it" if probe.settings.data else ""
    return f"each device alone{held}: {per_s(_total(probe))} in total, model {probe.settings.model}"


def _total(probe: Probe) -> float:
    return sum(one.solo_best.throughput for one in probe.probes if one.solo_best)


def _device(device: Device, one: DeviceProbe, *, whole: bool) -> Iterator[str]:
    best = _best(one) or (
        "" if one.curve or one.batch_limit or one.failures else "nothing was measured yet"
    )
    yield ": ".join(filter(None, (device_line(device), best)))
    if whole:
        yield from (f"  {fact}" for fact in _facts(device, one) if fact)
    yield from (f"  failed: {failure.message}" for failure in one.failures)


def _best(one: DeviceProbe) -> str:
    best, sensible = one.solo_best, one.sensible
    if best is None or sensible is None:
        return ""
    smaller = "" if sensible.batch == best.batch else f", 95 % of it from {sensible.batch}"
    return f"{per_s(best.throughput)} at batch {best.batch}{smaller}"


def _facts(device: Device, one: DeviceProbe) -> Iterator[str]:
    yield _curve(one)
    yield _limit(one.batch_limit) if one.batch_limit else ""
    yield _model(one, one.step_time_model) if one.step_time_model else ""
    if one.flops_per_s is not None and not device.simulated:
        mfu = f", {format_percent(one.mfu)} of its peak (MFU)" if one.mfu is not None else ""
        joule = (
            f", {one.samples_per_joule:.3g} samples a joule"
            if one.samples_per_joule is not None
            else ""
        )
        yield f"compute: {format_flops(one.flops_per_s)} at its best{mfu}{joule}"


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


def _limit(limit: BatchLimit) -> str:
    if limit.fits is None:
        return f"batch limit: not even {limit.fails} fits"
    if limit.fails is None:
        return f"batch limit: none found up to batch {limit.max_batch}"
    why = next(
        (trial.outcome for trial in reversed(limit.trials) if trial.batch == limit.fails), "oom"
    )
    return f"batch limit: {limit.fits} trains, {limit.fails} does not ({OUTCOMES[why]})"


def _model(one: DeviceProbe, model: StepTimeModel) -> str:
    line = f"{format_seconds(model.alpha_s)} + {format_seconds(model.beta_s)} · batch"
    off = f"off by {format_percent(model.residual, 1)} at most"
    update = f"; {format_seconds(one.update_s)} of it is the update" if one.update_s else ""
    if model.planned_with == "curve":
        return f"step time: no line ({line} is {off}), so plans use the measured curve{update}"
    return f"step time: {line}, {off}{update}"
