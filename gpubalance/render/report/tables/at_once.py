"""What models that train independently gave: each device alone and at once, their sum, timings, telemetry."""

from __future__ import annotations

from collections.abc import Iterator

from gpubalance.render.report.subject import Subject
from gpubalance.render.report.table import Table
from gpubalance.render.report.tables.rows import (
    TELEMETRY_LABELS,
    Row,
    fields,
    interval,
    reasons_text,
    table,
    telemetry,
    timings,
)
from gpubalance.results.common import StepTime
from gpubalance.results.independent import Independent, OwnModel
from gpubalance.results.telemetry import Telemetry

_WAITS = ("input_wait_s", "solo_input_wait_s")


def tables(subject: Subject) -> tuple[Table, ...]:
    """Each device, and the sum; none for another kind of result."""
    result = subject.independent
    if result is None:
        return ()
    return (
        *table(
            "replicas", "Each device, alone and at once", (_device(subject, result, one) for one in result.replicas)
        ),
        *table("sum", "All at once", [_total(result)], labels={"solo_sum": "the same alone"}),
    )


def long_tables(subject: Subject) -> tuple[Table, ...]:
    """The timings behind each median, and telemetry."""
    result = subject.independent
    if result is None:
        return ()
    note = "A timing is the mean of consecutive steps that were timed together."
    return (
        *table("samples", "Step times", _timings(subject, result), note, long=True),
        *table("telemetry", "Telemetry", _telemetry(subject, result), labels=TELEMETRY_LABELS),
        *table("course", "Telemetry over the measurement", _course(subject, result), long=True, labels={"at_s": "at"}),
    )


def _device(subject: Subject, result: Independent, one: OwnModel) -> Row:
    return {
        "device": subject.devices[one.device].label,
        **fields(one, "model", "batch", "solo_throughput", "throughput", "contention"),
        **interval("contention", one.contention_ci95),
        "step_time_s": one.step_time_s.median if one.step_time_s else None,
        **(fields(one, *_WAITS) if _are_fed(result) else {}),
        "memory_peak_bytes": one.memory_peak_bytes,
        "failure": one.failure.message if one.failure else "none",
    }


def _are_fed(result: Independent) -> bool:
    """Whether samples came from the host."""
    return any(getattr(one, name) is not None for one in result.replicas for name in _WAITS)


def _total(result: Independent) -> Row:
    joint = result.joint
    return {
        "throughput": result.throughput.median if result.throughput else None,
        **interval("throughput", result.throughput.ci95 if result.throughput else None),
        **fields(result, "solo_sum", "overlap_s"),
        "joint_batches": str(joint.split) if joint else None,
        "joint_throughput": joint.throughput.median if joint else None,
        "complete": result.complete,
    }


def _measured(one: OwnModel) -> Iterator[tuple[str, StepTime | None, Telemetry | None]]:
    yield "at once", one.step_time_s, one.telemetry
    yield "alone", one.solo_step_time_s, one.solo_telemetry


def _timings(subject: Subject, result: Independent) -> Iterator[Row]:
    for one in result.replicas:
        for how, times, _ in _measured(one):
            for timing in timings(times) if times is not None else ():
                yield {"device": subject.devices[one.device].label, "measured": how, **timing}


def _telemetry(subject: Subject, result: Independent) -> Iterator[Row]:
    for one in result.replicas:
        for how, _, told in _measured(one):
            if told is not None:
                yield {"device": subject.devices[one.device].label, "measured": how, **telemetry(told)}


def _course(subject: Subject, result: Independent) -> Iterator[Row]:
    names = ("at_s", "temperature_c", "power_w", "sm_clock_mhz", "memory_clock_mhz")
    for one in result.replicas:
        for how, _, told in _measured(one):
            for moment in told.course if told is not None else ():
                yield {
                    "device": subject.devices[one.device].label,
                    "measured": how,
                    **fields(moment, *names),
                    "throttle_reasons": reasons_text(moment.throttle_reasons),
                }
