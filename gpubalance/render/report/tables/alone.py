"""What each device can do alone: its curve, its batch limit and how it was found, its step-time model."""

from __future__ import annotations

from collections.abc import Iterator

from gpubalance.render.report.subject import Subject
from gpubalance.render.report.table import Cell, Column, Table, make
from gpubalance.render.report.tables.telemetry import TELEMETRY, telemetry_cells
from gpubalance.results.probe import CurvePoint, DeviceProbe

_DEVICE = Column("device", "device", "text")

_CURVE = (
    _DEVICE,
    Column("batch", "batch"),
    Column("throughput", "throughput", "samples/s"),
    Column("throughput_from", "from (95 %)", "samples/s"),
    Column("throughput_to", "to (95 %)", "samples/s"),
    Column("step_time_s", "step time", "ms"),
    Column("step_time_from_s", "from (95 %)", "ms"),
    Column("step_time_to_s", "to (95 %)", "ms"),
    Column("mad_s", "MAD", "ms"),
    Column("memory_peak_bytes", "memory peak", "GiB"),
    Column("precise", "within ±1 %"),
    Column("steady", "steady"),
    Column("measured_again", "measured again"),
    Column("late_part", "later than its profile", "%"),
    Column("steps_per_sample", "steps a sample"),
    Column("samples", "samples"),
)
_SAMPLES = (_DEVICE, Column("batch", "batch"), Column("sample", "sample"), Column("step_time_s", "step time", "ms"))
_MODEL = (
    _DEVICE,
    Column("alpha_s", "α", "ms"),
    Column("beta_s", "β a sample", "µs"),
    Column("residual", "off by at most", "%"),
    Column("planned_with", "planned with", "text"),
    Column("fits", "trains"),
    Column("fails", "does not"),
    Column("max_batch", "looked up to"),
    Column("memory_bytes", "memory limit", "GiB"),
    Column("needed_bytes", "that one asked for", "GiB"),
    Column("solo_best", "best alone", "samples/s"),
    Column("solo_best_batch", "at batch"),
    Column("sensible_batch", "within 5 % from"),
)
_WORK = (
    _DEVICE,
    Column("flops_per_sample", "FLOP a sample"),
    Column("flops_per_s", "at its best", "FLOP/s"),
    Column("peak_flops_per_s", "peak", "FLOP/s"),
    Column("mfu", "MFU", "%"),
    Column("samples_per_joule", "energy", "samples/J"),
    Column("measured_s", "in measured steps", "s"),
    Column("elapsed_s", "in all", "s"),
    Column("children", "child processes"),
    Column("steady", "steady"),
    Column("complete", "whole"),
    Column("failures", "failures", "text"),
)
_TRIALS = (
    _DEVICE,
    Column("trial", "trial"),
    Column("batch", "batch"),
    Column("outcome", "outcome", "text"),
    Column("seconds", "took", "s"),
    Column("memory_peak_bytes", "memory", "GiB"),
    Column("fresh", "in a fresh child"),
    Column("reason", "reason", "text"),
)
OUTCOMES = {
    "fits": "fits",
    "oom": "out of memory",
    "margin": "leaves less than the margin",
    "crash": "its child died",
    "deadline": "its child fell silent",
}


def tables(subject: Subject) -> tuple[Table, ...]:
    """None where no device was probed."""
    probes = [(subject.devices[i].label, one) for i, one in enumerate(subject.probes) if one is not None]
    curve = [_point(label, point) for label, one in probes for point in sorted(one.curve, key=lambda p: p.batch)]
    health = [row for label, one in probes for row in _health(label, one)]
    note = f"From {subject.probe_from}." if subject.kind != "probe" and subject.probe_from else ""
    return (
        *make("model", "Each device alone", _MODEL, [_model(label, one) for label, one in probes], note),
        *make("curve", "Throughput over batch size, each device alone", _CURVE, curve),
        *make("planned_curve", "The curves that are planned with", (*_SAMPLES[:2], _SAMPLES[3]), _curves(probes)),
        *make("health", "Telemetry, each device alone", (*_SAMPLES[:2], *TELEMETRY), health),
        *make("trials", "The search for the batch limit", _TRIALS, list(_trials(probes))),
        *make("work", "What the probe took and found", _WORK, [_work(label, one) for label, one in probes]),
        *(_samples(probes) if subject.kind == "probe" else ()),
    )


def _curves(probes: list[tuple[str, DeviceProbe]]) -> list[list[Cell]]:
    """Of devices whose step time is no line."""
    models = [(label, one.step_time_model) for label, one in probes if one.step_time_model is not None]
    return [[label, batch, seconds] for label, model in models for batch, seconds in model.curve or ()]


def _samples(probes: list[tuple[str, DeviceProbe]]) -> tuple[Table, ...]:
    rows: list[list[Cell]] = [
        [label, point.batch, number, seconds]
        for label, one in probes
        for point in sorted(one.curve, key=lambda p: p.batch)
        for number, seconds in enumerate(point.step_time_s.samples, 1)
    ]
    return make("curve_samples", "Step times, each device alone", _SAMPLES, rows, long=True)


def _point(label: str, point: CurvePoint) -> list[Cell]:
    times = point.step_time_s
    return [
        *(label, point.batch, point.throughput.median, *(point.throughput.ci95 or (None, None))),
        *(times.median, *(times.ci95 or (None, None)), times.mad, point.memory_peak_bytes),
        *(point.precise, point.steady, point.measured_again, point.late_part),
        *(times.steps_per_sample, len(times.samples)),
    ]


def _health(label: str, one: DeviceProbe) -> Iterator[list[Cell]]:
    """Of the points at which the device told how it was."""
    for point in sorted(one.curve, key=lambda p: p.batch):
        t = point.telemetry
        if t is not None:
            yield [label, point.batch, *telemetry_cells(t)]


def _model(label: str, one: DeviceProbe) -> list[Cell]:
    model, limit, best = one.step_time_model, one.batch_limit, one.solo_best
    return [
        label,
        *([None] * 4 if model is None else [model.alpha_s, model.beta_s, model.residual, model.planned_with]),
        *([None] * 3 if limit is None else [limit.fits, limit.fails, limit.max_batch]),
        *([None] * 2 if limit is None else [limit.memory_bytes, limit.needed_bytes]),
        *([None] * 2 if best is None else [best.throughput, best.batch]),
        one.sensible.batch if one.sensible is not None else None,
    ]


def _work(label: str, one: DeviceProbe) -> list[Cell]:
    return [
        *(label, one.flops_per_sample, one.flops_per_s, one.peak_flops_per_s, one.mfu, one.samples_per_joule),
        *(one.measured_s, one.elapsed_s, one.children, one.steady, one.complete),
        "; ".join(failure.message for failure in one.failures) or "none",
    ]


def _trials(probes: list[tuple[str, DeviceProbe]]) -> Iterator[list[Cell]]:
    for label, one in probes:
        for number, trial in enumerate(one.batch_limit.trials if one.batch_limit else (), 1):
            yield [
                *(label, number, trial.batch, OUTCOMES[trial.outcome], trial.seconds, trial.memory_peak_bytes),
                *(trial.fresh, trial.reason),
            ]
