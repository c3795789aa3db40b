"""Every number behind a section's answer and charts, in tables of one kind each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from gpubalance.render.columns import Cell, Column, columns_of, named
from gpubalance.render.report import leads
from gpubalance.render.report.leads import Lead, steps_of
from gpubalance.render.table import TextTable
from gpubalance.results.common import OfModel, StepTime
from gpubalance.results.independent import HeldAgainst, Independent, OwnModel
from gpubalance.results.layers import (
    Layers,
    LayersBaselines,
    LayersRound,
    MeasuredBlock,
    PredictedStep,
    SplitBaseline,
    Stage,
    StepTask,
    StepUpdate,
)
from gpubalance.results.plan import (
    Accumulation,
    Goodput,
    LearningRate,
    LeftOut,
    Predicted,
    Round,
    Share,
    SplitPrediction,
)
from gpubalance.results.probe import CurvePoint, DeviceProbe, Failure, Trial
from gpubalance.results.queue import Queue, QueuedCommand, QueueShare, Try
from gpubalance.results.run import (
    InputPipeline,
    Measurement,
    Replica,
    Run,
    SoloBest,
    SoloGap,
)
from gpubalance.results.subject import ReportSubject
from gpubalance.results.timing import Moment, Telemetry
from gpubalance.settings.device import Device
from gpubalance.settings.record import Record, Shown

_AGAINST = (
    "baselines.solo_sum",
    "speedup_over_even",
    "speedup_ci95",
    "scaling_efficiency",
    "stamp_cost",
    "warmup_steps",
    "steps",
)
_ALONE = (
    "same_as",
    "step_time_model",
    "update_s",
    "batch_limit",
    "solo_best",
    "sensible",
)
_WORK = (
    "flops_per_sample",
    "flops_per_s",
    "peak_flops_per_s",
    "mfu",
    "samples_per_joule",
    "steady",
    "on_line",
    "measured_s",
    "elapsed_s",
    "children",
    "complete",
)
_ROUND = ("outcome", "predicted_throughput", "measured.throughput")
_TASK = ("segment", "micro_batch", "sent_s", "ready_s", "start_s", "end_s")
_DEVICE = ("name", "uuid", "bus_id", "memory_bytes", "simulated")
# What leads a row, or is computed for it, where its name does not say all.
_LEADS = {
    "sample": Shown("timing"),
    "at_s": Shown("ended at", "s"),
    "cause": Shown("from the solo sum to the joint throughput"),
    "rate": Shown("throughput", "samples/s"),
    "part": Shown("of the solo sum", "%"),
    "solo_best_why_not": Shown("one device alone"),
    "split_why_not": Shown("the batch split"),
}
# The splits that the chosen one is compared with, by the fields that they are in.
_SPLITS = {
    "even": "even",
    "best_at_even": "the best split with the even split's global batch",
    "best_at_own": "the best split with your own global batch",
}
# What is shown once for the whole result, or is no figure.
_APART = {
    "devices",
    "settings",
    "environment",
    "model",
    "warnings",
    "probes",
    "by_global_batch",
    "profile",
}
_OF_TIME = (StepTime, Telemetry, Moment)  # a probe's own section has them


class TableKind(NamedTuple):
    """The table of all records of these classes, with these fields of them.

    Without `names` it has all their figures, with None for them none. `leads` gives what else is in
    the rows of a record, of which it usually has one. Markdown leaves out `long` tables.
    """

    id: str
    title: str
    of: type[Record] | tuple[type[Record], ...]
    names: Sequence[str] | None = ()
    leads: Callable[[Any, ReportSubject], Iterable[Lead]] = leads.of_record
    note: str = ""
    long: bool = False


# In the order of the charts: what devices gave together, the plan, each device alone, the rest.
KINDS = (
    TableKind("step", "Steps", Measurement),
    TableKind("parts", "Each device's part of the step", Replica),
    TableKind("against", "Compared with", Run, _AGAINST),
    TableKind("replicas", "Each device, alone and at once with the others", OwnModel),
    TableKind(
        "sum",
        "All at once",
        Independent,
        ("throughput", "solo_sum", "overlap_s", "complete"),
    ),
    TableKind(
        "held_against",
        "What it is compared with",
        (HeldAgainst, SplitBaseline),
        leads=leads.of_split,
    ),
    TableKind("stages", "Each device's part of a step", Stage, leads=leads.of_stage),
    TableKind("layers", "The step", Layers),
    TableKind(
        "cuts",
        "The search for where to cut",
        LayersRound,
        ("predicted_s", "step_time_s"),
        leads.of_cut,
    ),
    TableKind(
        "why_not",
        "What it can't be compared with",
        LayersBaselines,
        None,
        leads.of_missing_baselines,
    ),
    TableKind(
        "blocks",
        "Blocks of layers, and a micro-batch's compute on each device",
        MeasuredBlock,
        leads=leads.of_block,
    ),
    TableKind("queue_shares", "What each device did", QueueShare),
    TableKind("queue", "All commands", Queue),
    TableKind("tries", "The commands, and where each ran", Try),
    TableKind("solo", "What the devices gave alone", SoloBest),
    TableKind("pipeline", "The input pipeline", InputPipeline),
    TableKind("gap", "Why not more", SoloGap, None, leads.of_gap),
    TableKind(
        "shares",
        "The plan's shares",
        Share,
        note="Up to: the largest micro-batch that the plan allows.",
    ),
    TableKind(
        "predicted",
        "Predicted",
        (Predicted, SplitPrediction, PredictedStep),
        leads=leads.of_split,
    ),
    TableKind(
        "goodput",
        "Goodput",
        Goodput,
        leads=leads.of_goodput,
        note="Goodput = throughput × efficiency.",
    ),
    TableKind(
        "rounds",
        "The search's rounds: each split that was tried",
        Round,
        _ROUND,
        leads.of_round,
    ),
    TableKind("left_out", "Devices without samples", LeftOut),
    TableKind(
        "accumulation",
        "With more accumulation",
        Accumulation,
        ("gain",),
        leads.of_split,
    ),
    TableKind("learning_rate", "Learning rate", LearningRate),
    TableKind("model", "Each device alone", DeviceProbe, _ALONE),
    TableKind("curve", "Throughput over batch size, each device alone", CurvePoint),
    TableKind(
        "planned_curve",
        "The curves that plans use",
        DeviceProbe,
        None,
        leads.of_planned_curve,
    ),
    TableKind("trials", "The search for the batch limit", Trial),
    TableKind("work", "The probe's duration and findings", DeviceProbe, _WORK),
    TableKind("failures", "What failed", Failure),
    TableKind("telemetry", "Telemetry", Telemetry),
    TableKind(
        "by_global_batch",
        "The fastest split by global batch",
        Predicted,
        None,
        leads.of_global_batches,
        long=True,
    ),
    TableKind(
        "samples",
        "Step times",
        StepTime,
        None,
        leads.of_timings,
        note="A timing is the mean of consecutive steps that were timed together.",
        long=True,
    ),
    TableKind("course", "Telemetry over time", Moment, long=True),
    TableKind(
        "timeline",
        "One step, task by task",
        (StepTask, StepUpdate),
        _TASK,
        leads.of_task,
        long=True,
    ),
    TableKind("devices", "Devices", Device, _DEVICE),
    TableKind("settings", "Settings and model", OfModel, None, leads.of_settings),
    TableKind("environment", "Environment", OfModel, None, leads.of_environment),
)


# A record, and what leads its rows.
_Entry = tuple[Lead, Record]


class Table(NamedTuple):
    """Rows of cells in the result's own units."""

    kind: TableKind
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]

    def grid(
        self,
        text: Callable[[Cell, Column], str],
        heads: Sequence[str],
        maximum: int | None = None,
    ) -> TextTable:
        """The same as texts under these heads, at most so many rows, as the page asks for."""
        rows: list[Sequence[str]] = [heads]
        rows += [list(map(text, row, self.columns)) for row in self.rows[:maximum]]
        left = [place for place, column in enumerate(self.columns) if column.is_text]
        return TextTable(rows, left)


def tables_of(subject: ReportSubject) -> list[Table]:
    """The tables that have rows, in their order."""
    records = [*_within(subject.result, {}, subject), *_predicted_parts(subject)]
    for device, probe in enumerate(subject.probes):
        if probe is None:
            continue
        for lead, record in _within(probe, {"device": subject.label(device)}, subject):
            if subject.kind == "probe" or not isinstance(record, _OF_TIME):
                records.append((lead, record))
    records += [({"device": device.label}, device) for device in subject.devices]
    # The chosen split stands first.
    records.sort(key=lambda entry: str(entry[0].get("split")).startswith("round"))
    tables = [_table(kind, records, subject) for kind in KINDS]
    return [table for table in tables if table is not None]


def _predicted_parts(subject: ReportSubject) -> Iterator[_Entry]:
    """Each device's part of the predicted steps, if nothing was run."""
    if subject.run is None:
        for step in steps_of(subject):
            for part in step.parts:
                yield {"split": step.title, "device": subject.label(part.device)}, part


def _within(record: Record, lead: Lead, subject: ReportSubject) -> Iterator[_Entry]:
    """A record and those within it."""
    device = getattr(record, "device", None)
    if isinstance(device, int) and "device" not in lead:
        lead = {**lead, "device": subject.label(device)}
    yield lead, record
    for name, value in record:
        if name in _APART:
            continue
        inner_lead = {**lead, **_lead_of_field(record, name)}
        items = value
        if not isinstance(value, tuple):
            items = [value]
        for item in items:
            if isinstance(item, Record):
                yield from _within(item, inner_lead, subject)


def _lead_of_field(record: Record, name: str) -> Lead:
    """What tells the records in a field from their like elsewhere."""
    if name in _SPLITS:
        return {"split": _SPLITS[name]}
    if isinstance(record, Round):
        return {"split": f"round {record.number}"}
    if isinstance(record, CurvePoint):
        return {"batch": record.batch}
    if isinstance(record, QueuedCommand):
        return {"number": record.number, "command": record.command}
    if isinstance(record, OwnModel) and name != "failure":
        return {"measured": "alone" if name.startswith("solo") else "at once"}
    return {}


def _table(
    kind: TableKind, records: Sequence[_Entry], subject: ReportSubject
) -> Table | None:
    """The table, without columns that no row knows; None if none is left."""
    leads: list[Lead] = []
    shown: list[Record] = []
    for lead, record in records:
        if isinstance(record, kind.of):
            for more in kind.leads(record, subject):
                leads.append({**lead, **more})
                shown.append(record)
    columns = _lead_columns(leads)
    if kind.names is not None and shown:
        record_type = type(shown[0]) if isinstance(kind.of, tuple) else kind.of
        for column in columns_of(record_type, *kind.names):
            columns.append((column, [column.value(record) for record in shown]))
    known = []
    cells_by_column = []
    for column, cells in columns:
        if any(cell is not None for cell in cells):
            known.append(column)
            cells_by_column.append(cells)
    if not known:
        return None
    return Table(kind, known, list(zip(*cells_by_column, strict=True)))


def _lead_columns(leads: Sequence[Lead]) -> list[tuple[Column, list[Cell]]]:
    """The columns of what leads the rows with their cells, the split first."""
    keys: dict[str, None] = {}  # in order, each once
    for lead in leads:
        keys |= dict.fromkeys(lead)
    columns = []
    for key in sorted(keys, key=lambda key: key != "split"):
        unknown = "chosen" if key == "split" else None
        cells = [lead.get(key, unknown) for lead in leads]
        is_text = any(isinstance(cell, str) for cell in cells)
        columns.append((named(key, _LEADS.get(key, Shown()), text=is_text), cells))
    return columns
