"""What devices gave together: the split and the even split, where the solo sum goes, step times, telemetry."""

from __future__ import annotations

from collections.abc import Iterator

from gpubalance.render.report.parts import gap_of, losses
from gpubalance.render.report.steps import steps_of
from gpubalance.render.report.subject import Subject
from gpubalance.render.report.table import Cell, Column, Table, make
from gpubalance.render.report.tables.telemetry import TELEMETRY, reasons_text, telemetry_cells
from gpubalance.results.run import Measurement, Run

_SPLIT = Column("split", "split", "text")
_DEVICE = Column("device", "device", "text")

_STEP = (
    _SPLIT,
    Column("global_batch", "global batch"),
    Column("throughput", "throughput", "samples/s"),
    Column("throughput_from", "from (95 %)", "samples/s"),
    Column("throughput_to", "to (95 %)", "samples/s"),
    Column("step_time_s", "step time", "ms"),
    Column("mad_s", "MAD", "ms"),
    Column("step_time_from_s", "from (95 %)", "ms"),
    Column("step_time_to_s", "to (95 %)", "ms"),
    Column("sync_s", "sync", "ms"),
    Column("input_wait_s", "input wait", "ms"),
    Column("excess_s", "excess", "ms"),
    Column("imbalance", "imbalance"),
    Column("steps_per_sample", "steps a sample"),
    Column("samples", "samples"),
)
_PARTS = (
    _SPLIT,
    _DEVICE,
    Column("batch", "batch"),
    Column("micro_batch", "micro-batch"),
    Column("throughput", "throughput", "samples/s"),
    Column("compute_s", "compute", "ms"),
    Column("wait_s", "wait", "ms"),
    Column("utilisation", "used", "%"),
    Column("memory_peak_bytes", "memory peak", "GiB"),
)


def tables(subject: Subject) -> tuple[Table, ...]:
    """The split and the even split, what a run is held against, and the division of the gap."""
    run = subject.run
    if run is None:
        return (*_predicted(subject), *_gap(subject))
    return (
        *make("step", "Steps", _STEP, [_step_row(*one) for one in _splits(run)]),
        *make("parts", "Each device's part of the step", _PARTS, list(_part_rows(subject, run))),
        *_against(subject, run),
        *_gap(subject),
    )


def long_tables(subject: Subject) -> tuple[Table, ...]:
    """The samples behind each median."""
    run = subject.run
    if run is None:
        return ()
    return (
        *_samples(run),
        *make("telemetry", "Telemetry", (_SPLIT, _DEVICE, *TELEMETRY), list(_telemetry_rows(subject, run))),
        *_course(subject, run),
    )


def _splits(run: Run) -> Iterator[tuple[str, Run | Measurement]]:
    yield "chosen", run
    if run.baselines.even is not None:
        yield "even", run.baselines.even


def _step_row(name: str, one: Run | Measurement) -> list[Cell]:
    rates, times = one.throughput.ci95 or (None, None), one.step_time_s.ci95 or (None, None)
    return [
        name,
        one.global_batch,
        one.throughput.median,
        *rates,
        one.step_time_s.median,
        one.step_time_s.mad,
        *times,
        one.sync_s,
        one.input_wait_s,
        one.excess_s,
        one.imbalance,
        one.step_time_s.steps_per_sample,
        len(one.step_time_s.samples),
    ]


def _part_rows(subject: Subject, run: Run) -> Iterator[list[Cell]]:
    for name, one in _splits(run):
        for r in one.replicas:
            device = subject.devices[r.device].label
            yield [
                *(name, device, r.batch, r.micro_batch, r.throughput),
                *(r.compute_s, r.wait_s, r.utilisation, r.memory_peak_bytes),
            ]


def _predicted(subject: Subject) -> tuple[Table, ...]:
    columns = (_SPLIT, _DEVICE, *_PARTS[2:4], *_PARTS[5:7])
    rows: list[list[Cell]] = [
        [step.title, subject.devices[part.device].label, part.batch, part.micro_batch, part.compute_s, part.wait_s]
        for step in steps_of(subject)
        for part in step.parts
    ]
    return make("predicted_parts", "Each device's part of the step, predicted", columns, rows)


def _against(subject: Subject, run: Run) -> tuple[Table, ...]:
    columns = (
        Column("speedup_over_even", "× over even"),
        Column("speedup_from", "from (95 %)"),
        Column("speedup_to", "to (95 %)"),
        Column("solo_sum", "solo sum", "samples/s"),
        Column("scaling_efficiency", "of the solo sum", "%"),
        Column("stamp_cost", "stamp cost", "%"),
        Column("warmup_steps", "warm-up steps"),
        Column("steps", "measured steps"),
    )
    interval = run.speedup_ci95 or (None, None)
    row: list[Cell] = [
        *(run.speedup_over_even, *interval, run.baselines.solo_sum, run.scaling_efficiency),
        *(run.stamp_cost, run.warmup_steps, run.steps),
    ]
    bests: list[list[Cell]] = [
        [subject.devices[best.device].label, best.batch, best.throughput] for best in run.baselines.solo_best or ()
    ]
    solo = (_DEVICE, Column("solo_best_batch", "batch"), Column("solo_best", "best alone", "samples/s"))
    return (
        *make("against", "Held against", columns, [row]),
        *make("solo", "What the devices gave alone", solo, bests),
    )


def _gap(subject: Subject) -> tuple[Table, ...]:
    gap = gap_of(subject)
    if gap is None:
        return ()
    columns = (
        Column("cause", "from the solo sum to what they give together", "text"),
        Column("rate", "throughput", "samples/s"),
        Column("part", "of the solo sum", "%"),
    )
    lost: list[list[Cell]] = [[cause, -rate, -rate / gap.solo_sum] for cause, rate in losses(subject, gap)]
    first: list[Cell] = ["solo sum", gap.solo_sum, 1.0]
    last: list[Cell] = ["together", gap.throughput, gap.throughput / gap.solo_sum]
    return make("gap", "Why not more", columns, [first, *lost, last])


def _samples(run: Run) -> tuple[Table, ...]:
    columns = (
        _SPLIT,
        Column("sample", "sample"),
        Column("at_s", "ended at", "s"),
        Column("step_time_s", "step time", "ms"),
    )
    rows = [
        [name, number, None if one.step_time_s.at_s is None else one.step_time_s.at_s[number - 1], seconds]
        for name, one in _splits(run)
        for number, seconds in enumerate(one.step_time_s.samples, 1)
    ]
    note = "A sample is the mean of consecutive steps that were timed as one."
    return make("samples", "Step times", columns, rows, note, long=True)


def _telemetry_rows(subject: Subject, run: Run) -> Iterator[list[Cell]]:
    for name, one in _splits(run):
        for r in one.replicas:
            if r.telemetry is not None:
                yield [name, subject.devices[r.device].label, *telemetry_cells(r.telemetry)]


def _course(subject: Subject, run: Run) -> tuple[Table, ...]:
    columns = (
        _DEVICE,
        Column("at_s", "at", "s"),
        Column("temperature_c", "temperature", "°C"),
        Column("power_w", "power", "W"),
        Column("sm_clock_mhz", "SM clock", "MHz"),
        Column("memory_clock_mhz", "memory clock", "MHz"),
        Column("throttle_reasons", "throttled by", "text"),
    )
    rows: list[list[Cell]] = [
        [
            *(subject.devices[r.device].label, moment.at_s, moment.temperature_c, moment.power_w),
            *(moment.sm_clock_mhz, moment.memory_clock_mhz),
            reasons_text(moment.throttle_reasons),
        ]
        for r in run.replicas
        if r.telemetry is not None
        for moment in r.telemetry.course
    ]
    return make("course", "Telemetry over the run", columns, rows, long=True)
