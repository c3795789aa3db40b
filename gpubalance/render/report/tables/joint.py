"""What devices gave together: the split and the even split, where the solo sum goes, step times, telemetry."""

from __future__ import annotations

from collections.abc import Iterator

from gpubalance.render.report.steps import steps_of
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
from gpubalance.render.solo_gap import all_losses
from gpubalance.results.run import Measurement, Run


def tables(subject: Subject) -> tuple[Table, ...]:
    """The split and the even split, what a run is compared with, and how the gap divides."""
    run = subject.run
    if run is None:
        return (*_predicted(subject), *_gap(subject))
    return (
        *table("step", "Steps", (_step(run, *one) for one in _splits(run))),
        *table("parts", "Each device's part of the step", _parts(subject, run)),
        *_against(subject, run),
        *_gap(subject),
    )


def long_tables(subject: Subject) -> tuple[Table, ...]:
    """The timings behind each median, and telemetry."""
    run = subject.run
    if run is None:
        return ()
    note = "A timing is the mean of consecutive steps that were timed together."
    return (
        *table("samples", "Step times", _timings(run), note, long=True),
        *table("telemetry", "Telemetry", _telemetry(subject, run), labels=TELEMETRY_LABELS),
        *table("course", "Telemetry over the run", _course(subject, run), long=True, labels={"at_s": "at"}),
    )


def _splits(run: Run) -> Iterator[tuple[str, Measurement]]:
    yield "chosen", run
    against = run.baselines
    others = {
        "even": against.even,
        "largest even": against.largest_even,
        "the best split of its global batch": against.best_at_largest_even,
    }
    yield from ((name, one) for name, one in others.items() if one is not None)


def _step(run: Run, name: str, one: Measurement) -> Row:
    times = one.step_time_s
    return {
        "split": name,
        "global_batch": one.global_batch,
        "throughput": one.throughput.median,
        **interval("throughput", one.throughput.ci95),
        "step_time_s": times.median,
        "mad_s": times.mad,
        **interval("step_time", times.ci95, "_s"),
        **(fields(one.step_spread, "p50_s", "p95_s") if run.step_spread else {}),
        **fields(one, "sync_s", "input_wait_s", "slow_s", "excess_s", "imbalance"),
        "steps_per_sample": times.steps_per_sample,
        "samples": len(times.samples),
    }


def _parts(subject: Subject, run: Run) -> Iterator[Row]:
    times = ("compute_s", "update_s", "wait_s")
    names = ("batch", "micro_batch", "throughput", *times, "utilisation", "memory_peak_bytes")
    for name, one in _splits(run):
        for replica in one.replicas:
            yield {"split": name, "device": subject.devices[replica.device].label, **fields(replica, *names)}


def _predicted(subject: Subject) -> tuple[Table, ...]:
    rows: list[Row] = [
        {
            "split": step.title,
            "device": subject.devices[part.device].label,
            "batch": part.batch,
            "micro_batch": part.micro_batch,
            "compute_s": part.compute_s,
            "update_s": part.update_s,
            "wait_s": part.wait_s,
        }
        for step in steps_of(subject)
        for part in step.parts
    ]
    return table("predicted_parts", "Each device's part of the step, predicted", rows)


def _against(subject: Subject, run: Run) -> tuple[Table, ...]:
    even = run.baselines.even
    row: Row = {
        "speedup_over_even": run.speedup_over_even,
        "global_batch": run.global_batch,
        "even_global_batch": None if even is None else even.global_batch,
        **interval("speedup", run.speedup_ci95),
        "solo_sum": run.baselines.solo_sum,
        **fields(run, "scaling_efficiency", "stamp_cost", "warmup_steps", "steps"),
    }
    bests: list[Row] = [
        {
            "device": subject.devices[best.device].label,
            "solo_best_batch": best.batch,
            "solo_best": best.throughput,
        }
        for best in run.baselines.solo_best or ()
    ]
    return (*table("against", "Compared with", [row]), *table("solo", "What the devices gave alone", bests))


def _gap(subject: Subject) -> tuple[Table, ...]:
    gap = subject.solo_gap
    if gap is None:
        return ()
    lost = [(cause, -rate or 0.0) for cause, rate in all_losses(subject.devices, gap)]
    rows: list[Row] = [
        {"cause": cause, "rate": rate, "part": rate / gap.solo_sum}
        for cause, rate in (("solo sum", gap.solo_sum), *lost, ("together", gap.throughput))
    ]
    return table("gap", "Why not more", rows)


def _timings(run: Run) -> Iterator[Row]:
    for name, one in _splits(run):
        for timing in timings(one.step_time_s):
            yield {"split": name, **timing}


def _telemetry(subject: Subject, run: Run) -> Iterator[Row]:
    for name, one in _splits(run):
        for replica in one.replicas:
            if replica.telemetry is not None:
                label = subject.devices[replica.device].label
                yield {"split": name, "device": label, **telemetry(replica.telemetry)}


def _course(subject: Subject, run: Run) -> Iterator[Row]:
    names = ("at_s", "temperature_c", "power_w", "sm_clock_mhz", "memory_clock_mhz")
    for replica in run.replicas:
        for moment in replica.telemetry.course if replica.telemetry is not None else ():
            yield {
                "device": subject.devices[replica.device].label,
                **fields(moment, *names),
                "throttle_reasons": reasons_text(moment.throttle_reasons),
            }
