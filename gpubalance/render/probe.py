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
from gpubalance.render.rates import per_s, pipeline_sentences, slowed_text, xla_text
from gpubalance.render.table import BLANK, WIDTH, Paragraph, shorten, sparkline, table
from gpubalance.results.probe import (
    BatchLimit,
    CurvePoint,
    DeviceProbe,
    Probe,
    StepTimeModel,
    Trial,
    not_probed_text,
)
from gpubalance.settings.device import Device

_NAME_WIDTH = 40
_MOST_WHOLE = 4
_BAR_WIDTH = 24
_OTHER_COLUMNS = 39
_EIGHTHS = " ▏▎▍▌▋▊▉"
_OUTCOMES = {
    "fits": "fits",
    "oom": "out of memory",
    "margin": "leaves less than the margin",
    "crash": "its worker died",
    "deadline": "its worker sent nothing",
}


def curve_lines(points: Sequence[CurvePoint], width: int = WIDTH) -> list[str]:
    """A row for each batch size, with a bar for its throughput, and marks of what is uncertain.

    On a narrow terminal the bar takes what the other columns leave, or is left out.
    """
    best = max(point.throughput.median for point in points)
    longest = max(len(_notes(point)) for point in points)
    notes_width = longest + 2 if longest else 0
    room = max(0, min(_BAR_WIDTH, width - _OTHER_COLUMNS - notes_width))
    rows = [["batch", "samples/s", "step", "memory", "", ""]]
    for point in sorted(points, key=lambda point: point.batch):
        bar = _bar(point.throughput.median / best, room)
        rows.append([str(point.batch), *_figures(point), bar, _notes(point)])
    if not room:
        rows = [row[:4] + row[5:] for row in rows]
    return table(rows, left=(4, 5), indent="  ")


def _figures(point: CurvePoint) -> tuple[str, str, str]:
    memory = format_bytes(point.memory_peak_bytes)
    return (
        format_rate(point.throughput.median),
        format_seconds(point.step_time_s.median),
        memory,
    )


def _bar(part: float, width: int) -> str:
    """A bar that is full at 1, in eighths of a character."""
    eighths = round(part * width * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _notes(point: CurvePoint) -> str:
    notes = []
    if not point.steady:
        notes.append("not steady")
    if not point.precise:
        notes.append("± over 1 %")
    if point.telemetry:
        notes += point.telemetry.throttle_reasons or ()
    return ", ".join(notes)


def point_text(device: Device, point: CurvePoint) -> str:
    """`GPU:0 batch 512: 1263 samples/s, 405 ms, 5.81 GiB`."""
    rate, step, memory = _figures(point)
    figures = [f"{rate} samples/s", step]
    if point.memory_peak_bytes is not None:
        figures.append(memory)
    if _notes(point):
        figures.append(_notes(point))
    return f"{device.label} batch {point.batch}: {', '.join(figures)}"


def trial_text(device: Device, trial: Trial) -> str:
    """`GPU:0 tried 1040 (the smallest that should fail): out of memory, 1.3 s`."""
    outcome = f"{_OUTCOMES[trial.outcome]}, {format_seconds(trial.seconds)}"
    return f"{device.label} tried {trial.batch} ({trial.reason}): {outcome}"


def device_line(device: Device) -> str:
    """The title of a device's table."""
    return f"{device.label}  {shorten(device.name, _NAME_WIDTH)}"


def probe_summary(probe: Probe) -> Iterator[Paragraph]:
    """What each device can do, without the curves; more than four devices get one line each."""
    yield from pipeline_sentences(
        probe.pipeline, _total(probe), time_scale=probe.settings.time_scale
    )
    yield probe_headline(probe)
    for device_probe in probe.probes:
        device = probe.devices[device_probe.device]
        if device_probe.same_as is not None:
            yield not_probed_text(device.label, device_probe.same_as)
            continue
        yield _answer(device, device_probe)
        if len(probe.probes) <= _MOST_WHOLE:
            for fact in _facts(device, device_probe):
                yield f"  {fact}"
        for failure in device_probe.failures:
            yield f"  failed: {failure.message}"
    if not probe.complete:
        yield BLANK
        yield "This probe is incomplete: --resume continues it."


def probe_headline(probe: Probe) -> str:
    """`each device alone: 2255 samples/s in total, model small`."""
    alone = "each device alone"
    if probe.settings.data:
        alone += ", with batches of --data held on it"
    model = f"model {probe.settings.model}{slowed_text(probe.settings)}"
    return f"{alone}: {per_s(_total(probe))} in total, {model}"


def _total(probe: Probe) -> float:
    bests = [device_probe.solo_best for device_probe in probe.probes]
    return sum(best.throughput for best in bests if best)


def _answer(device: Device, probe: DeviceProbe) -> str:
    """`GPU:0  GeForce GTX 1080 Ti: 1343 samples/s at batch 1024, 95 % of it at 512`."""
    text = device_line(device)
    best = probe.solo_best
    sensible = probe.sensible
    if best is None or sensible is None:
        if not (probe.curve or probe.batch_limit or probe.failures):
            text += ": nothing was measured yet"
        return text
    text += f": {per_s(best.throughput)} at batch {best.batch}"
    if sensible.batch == best.batch:
        return text
    return f"{text}, 95 % of it at {sensible.batch}"


def _facts(device: Device, probe: DeviceProbe) -> Iterator[str]:
    points = sorted(probe.curve, key=lambda point: point.batch)
    if len(points) > 1:
        yield _curve(points)
    if probe.batch_limit:
        yield _limit(probe.batch_limit)
    if probe.step_time_model:
        yield _model(probe.step_time_model, probe.update_s)
    if probe.with_xla and probe.xla_ratio:
        rate = per_s(probe.with_xla.throughput.median)
        yield f"with XLA {rate} at batch {probe.with_xla.batch}, {probe.xla_ratio:.2f} × that"
        if text := xla_text(device.label, probe.xla_ratio):
            yield text
    if probe.flops_per_s is not None and not device.simulated:
        compute = f"compute: {format_flops(probe.flops_per_s)} at its best"
        if probe.mfu is not None:
            compute += f", {format_percent(probe.mfu)} of its peak (MFU)"
        if probe.samples_per_joule is not None:
            compute += f", {probe.samples_per_joule:.3g} samples a joule"
        yield compute


def _curve(points: Sequence[CurvePoint]) -> str:
    """The throughputs over the batch sizes as ticks, from 0 to the best."""
    ticks = sparkline([point.throughput.median for point in points], minimum=0.0)
    text = f"{ticks} samples/s at batch {points[0].batch} to {points[-1].batch}"
    widest = max(point.half_width for point in points)
    if math.isfinite(widest):
        text += f", each within ± {format_percent(widest, 1)}"
    unsteady = sum(not point.steady for point in points)
    if unsteady:
        text += f"; {unsteady} of {len(points)} not steady"
    return text


def _limit(limit: BatchLimit) -> str:
    if limit.fits is None:
        return f"batch limit: not even {limit.fails} fits"
    if limit.plateau is not None:
        return (
            f"batch limit: at least {limit.fits} trains; the search ended there, "
            f"because throughput stopped rising at {limit.plateau}; probe "
            "--find-limit continues"
        )
    if limit.fails is None:
        return f"batch limit: none found up to batch {limit.max_batch}"
    failed = [trial.outcome for trial in limit.trials if trial.batch == limit.fails]
    why = "oom"
    if failed:
        why = failed[-1]
    return (
        f"batch limit: {limit.fits} trains, {limit.fails} does not ({_OUTCOMES[why]})"
    )


def _model(model: StepTimeModel, update_s: float | None) -> str:
    line = f"{format_seconds(model.alpha_s)} + {format_seconds(model.beta_s)} · batch"
    off = f"off by at most {format_percent(model.residual, 1)}"
    update = ""
    if update_s:
        update = f"; {format_seconds(update_s)} of it is the update"
    if model.planned_with == "curve":
        return (
            f"step time: not linear in the batch ({line} is {off}), so plans use the "
            f"measured curve{update}"
        )
    return f"step time: {line}, {off}{update}"
