"""What each device can do alone: its curve, its batch limit and how it was found, its step-time model."""

from __future__ import annotations

from collections.abc import Iterator

from gpubalance.render.probe import OUTCOMES
from gpubalance.render.report.subject import Subject
from gpubalance.render.report.table import Table
from gpubalance.render.report.tables.rows import TELEMETRY_LABELS, Row, fields, interval, table, telemetry, timings
from gpubalance.results.probe import CurvePoint, DeviceProbe

_Probes = list[tuple[str, DeviceProbe]]


def tables(subject: Subject) -> tuple[Table, ...]:
    """The tables about each device alone; none if no device was probed."""
    probes = [(subject.devices[i].label, one) for i, one in enumerate(subject.probes) if one is not None]
    points = [(label, point) for label, one in probes for point in sorted(one.curve, key=lambda p: p.batch)]
    models = [(label, one.step_time_model) for label, one in probes if one.step_time_model is not None]
    planned: list[Row] = [
        {"device": label, "batch": batch, "step_time_s": seconds}
        for label, model in models
        for batch, seconds in model.curve or ()
    ]
    health: list[Row] = [
        {"device": label, "batch": point.batch, **telemetry(point.telemetry)}
        for label, point in points
        if point.telemetry is not None
    ]
    samples: list[Row] = [
        {"device": label, "batch": point.batch, **timing}
        for label, point in points
        for timing in timings(point.step_time_s)
    ]
    is_probe = subject.kind == "probe"
    note = f"From {subject.probe_from}." if subject.probe_from and not is_probe else ""
    return (
        *_models(probes, note),
        *table("curve", "Throughput over batch size, each device alone", (_point(*one) for one in points)),
        *table("planned_curve", "The curves that are planned with", planned),
        *table("health", "Telemetry, each device alone", health, labels=TELEMETRY_LABELS),
        *table("trials", "The search for the batch limit", _trials(probes), labels={"memory_peak_bytes": "memory"}),
        *table("work", "What the probe took and found", (_work(*one) for one in probes)),
        *table("curve_samples", "Step times, each device alone", samples if is_probe else (), long=True),
    )


def _models(probes: _Probes, note: str) -> tuple[Table, ...]:
    rows = (_model(*one) for one in probes)
    labels = {"memory_bytes": "memory limit", "solo_best_batch": "at batch"}
    return table("model", "Each device alone", rows, note, labels=labels)


def _model(label: str, one: DeviceProbe) -> Row:
    best = one.solo_best
    return {
        "device": label,
        **fields(one.step_time_model, "alpha_s", "beta_s", "residual", "planned_with"),
        **fields(one, "update_s"),
        **fields(one.batch_limit, "fits", "fails", "max_batch", "memory_bytes", "needed_bytes"),
        "solo_best": best.throughput if best else None,
        "solo_best_batch": best.batch if best else None,
        "sensible_batch": one.sensible.batch if one.sensible else None,
    }


def _point(label: str, point: CurvePoint) -> Row:
    times = point.step_time_s
    return {
        "device": label,
        "batch": point.batch,
        "throughput": point.throughput.median,
        **interval("throughput", point.throughput.ci95),
        "step_time_s": times.median,
        **interval("step_time", times.ci95, "_s"),
        "mad_s": times.mad,
        **fields(point, "memory_peak_bytes", "precise", "steady", "measured_again", "late_part"),
        "steps_per_sample": times.steps_per_sample,
        "samples": len(times.samples),
    }


def _trials(probes: _Probes) -> Iterator[Row]:
    for label, one in probes:
        for number, trial in enumerate(one.batch_limit.trials if one.batch_limit else (), 1):
            yield {
                "device": label,
                "trial": number,
                "batch": trial.batch,
                "outcome": OUTCOMES[trial.outcome],
                **fields(trial, "seconds", "memory_peak_bytes", "fresh", "reason"),
            }


def _work(label: str, one: DeviceProbe) -> Row:
    computed = ("flops_per_sample", "flops_per_s", "peak_flops_per_s", "mfu", "samples_per_joule")
    return {
        "device": label,
        **fields(one, *computed, "measured_s", "elapsed_s", "children", "steady", "complete"),
        "failures": "; ".join(failure.message for failure in one.failures) or "none",
    }
