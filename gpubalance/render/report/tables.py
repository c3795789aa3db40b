"""Every number behind a section's answer and charts: a table for each kind of record in a result,
and in its probe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Any, NamedTuple

from gpubalance.render.fields import Cell, Column, columns_of, named
from gpubalance.render.layers import blocks_text
from gpubalance.render.plan import all_losses
from gpubalance.render.report.steps import steps_of
from gpubalance.render.table import TextTable
from gpubalance.results.common import OfModel, StepTime, shapes_text
from gpubalance.results.gap import SoloGap
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
from gpubalance.results.run import InputPipeline, Measurement, Replica, Run, SoloBest
from gpubalance.results.subject import ReportSubject
from gpubalance.results.telemetry import Moment, Telemetry
from gpubalance.settings.device import Device
from gpubalance.settings.record import Record, Shown
from gpubalance.settings.shares import run_text

Lead = Mapping[str, Any]

# What leads a row, or is computed for it, where its name does not say all.
_LEADS = {
    "sample": Shown("timing"),
    "at_s": Shown("ended at", "s"),
    "cause": Shown("from the solo sum to what they give together"),
    "rate": Shown("throughput", "samples/s"),
    "part": Shown("of the solo sum", "%"),
    "solo_best_why_not": Shown("one device alone"),
    "split_why_not": Shown("the batch split"),
}
# The splits that the chosen one is compared with, by the fields that they are in.
_SPLITS = {
    "even": "even",
    "best_at_even": "the best split of the even split's global batch",
    "best_at_own": "the best split of your own global batch",
}
# What is told once for the whole result, or is no figure.
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
# What a result was made with, beside its settings.
_ASKED = ("probed", "batch_multiple", "margin_bytes", "max_batch", "parallel", "sync_s", "forced")
_ALONE = ("same_as", "step_time_model", "update_s", "batch_limit", "solo_best", "sensible")
_WORK = (
    *(
        "flops_per_sample",
        "flops_per_s",
        "peak_flops_per_s",
        "mfu",
        "samples_per_joule",
        "steady",
        "on_line",
    ),
    *("measured_s", "elapsed_s", "children", "complete"),
)
_RATIOS = (
    "speedup_over_even",
    "speedup_ci95",
    "scaling_efficiency",
    "stamp_cost",
    "warmup_steps",
    "steps",
)
_ROUND = ("outcome", "predicted_throughput", "measured.throughput")
_OF_TIME = (StepTime, Telemetry, Moment)  # a probe's own section has them
_CHOSEN = {"split": "chosen"}
_TIMING = "A timing is the mean of consecutive steps that were timed together."


def _one_row(_: Any, __: ReportSubject) -> Iterable[Lead]:
    return ({},)


class TableKind(NamedTuple):
    """The table of all records of these classes, with these fields of them: all figures without
    names, none for None.

    `leads` gives what else is in the rows of a record, of which it usually has one. Markdown leaves
    out `long` tables.
    """

    id: str
    title: str
    of: type[Record] | tuple[type[Record], ...]
    names: Sequence[str] | None = ()
    leads: Callable[[Any, ReportSubject], Iterable[Lead]] = _one_row
    note: str = ""
    long: bool = False


class Table(NamedTuple):
    """Rows of cells in the result's own units."""

    kind: TableKind
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def grid(
        self, text: Callable[[Cell, Column], str], heads: Sequence[str], most: int | None = None
    ) -> TextTable:
        """The same as texts under these heads, at most so many rows."""
        rows = (
            [text(cell, column) for cell, column in zip(row, self.columns, strict=True)]
            for row in self.rows[:most]
        )
        return TextTable(
            [heads, *rows], [place for place, column in enumerate(self.columns) if column.is_text]
        )


def _split(one: Any, subject: ReportSubject) -> Iterator[Lead]:
    split = getattr(one, "split", subject.split)
    yield {"batches": str(split), "global_batch": split.global_batch} if split else {}


def _by_global_batch(predicted: Predicted, subject: ReportSubject) -> Iterator[Lead]:
    for one in predicted.by_global_batch:
        for lead in _split(one, subject):
            yield {**lead, "step_time_s": one.step_time_s, "throughput": one.throughput}


def _timings(times: StepTime, _: ReportSubject) -> Iterator[Lead]:
    """Each timing, counted from 1, with the time at which it ended."""
    for number, (seconds, at_s) in enumerate(zip(times.samples, times.at_s, strict=True), 1):
        yield {"sample": number, "at_s": at_s, "step_time_s": seconds}


def _gap(gap: SoloGap, subject: ReportSubject) -> Iterator[Lead]:
    lost = [(loss.cause, -loss.rate or 0.0) for loss in all_losses(subject.devices, gap)]
    for cause, rate in (("solo sum", gap.solo_sum), *lost, ("together", gap.throughput)):
        yield {"cause": cause, "rate": rate, "part": rate / gap.solo_sum}


def _curve(probe: DeviceProbe, _: ReportSubject) -> Iterator[Lead]:
    for batch, seconds in (probe.step_time_model and probe.step_time_model.curve) or ():
        yield {"batch": batch, "step_time_s": seconds}


def _cut(tried: LayersRound, subject: ReportSubject) -> Iterator[Lead]:
    stages = ", ".join(
        f"{subject.label(device)} {run_text(first, last)}" for first, last, device in tried.segments
    )
    outcome = (
        tried.outcome
        if tried.ran_out is None
        else f"{subject.label(tried.ran_out)} ran out of memory"
    )
    yield {"round": tried.number, "blocks": stages, "outcome": outcome}


def _why_not(against: LayersBaselines, _: ReportSubject) -> Iterator[Lead]:
    yield {name: getattr(against, name) for name in ("solo_best_why_not", "split_why_not")}


def _block(block: MeasuredBlock, subject: ReportSubject) -> Iterator[Lead]:
    number = subject.result.blocks.index(block) if isinstance(subject.result, Layers) else 0
    for device, seconds in enumerate(block.compute_s):
        yield {"block": number, "device": subject.label(device), "compute_s": seconds}


def _settings(result: OfModel, subject: ReportSubject) -> Iterator[Lead]:
    told: dict[str, Any] = {**dict(result.settings), "created": result.created}
    if result.model is not None:
        shapes = result.model.input_shapes
        told |= {
            "parameters": result.model.parameters,
            "gradient_bytes": result.model.gradient_bytes,
        }
        told |= {"input_shapes": shapes_text(shapes)} if shapes is not None else {}
    told |= {name: getattr(result, name) for name in _ASKED if hasattr(result, name)}
    if result is subject.result:
        yield from ({"setting": name, "value": value} for name, value in told.items())


def _environment(result: OfModel, subject: ReportSubject) -> Iterator[Lead]:
    if result is (subject.run or subject.result):
        yield from ({"setting": name, "value": value} for name, value in result.environment or ())


# In the order of the charts: what devices gave together, the plan, each device alone, the rest.
_KINDS = (
    TableKind("step", "Steps", Measurement),
    TableKind("parts", "Each device's part of the step", Replica),
    TableKind("against", "Compared with", Run, ("baselines.solo_sum", *_RATIOS)),
    TableKind("replicas", "Each device, alone and at once", OwnModel),
    TableKind(
        "sum", "All at once", Independent, ("throughput", "solo_sum", "overlap_s", "complete")
    ),
    TableKind(
        "held_against", "What it is compared with", (HeldAgainst, SplitBaseline), leads=_split
    ),
    TableKind(
        "stages",
        "Each device's part of a step",
        Stage,
        leads=lambda one, _: [{"blocks": blocks_text(one)}],
    ),
    TableKind("layers", "The step", Layers),
    TableKind("cuts", "The search for the cut", LayersRound, ("predicted_s", "step_time_s"), _cut),
    TableKind("why_not", "What it can't be compared with", LayersBaselines, None, _why_not),
    TableKind(
        "blocks", "Blocks, and a micro-batch's compute on each device", MeasuredBlock, leads=_block
    ),
    TableKind("queue_shares", "What each device did", QueueShare),
    TableKind("queue", "All commands", Queue),
    TableKind("tries", "The commands, and where each ran", Try),
    TableKind("solo", "What the devices gave alone", SoloBest),
    TableKind("pipeline", "The input pipeline", InputPipeline),
    TableKind("gap", "Why not more", SoloGap, None, _gap),
    TableKind(
        "shares",
        "The plan's shares",
        Share,
        note="Up to: the largest micro-batch that is planned with.",
    ),
    TableKind("predicted", "Predicted", (Predicted, SplitPrediction, PredictedStep), leads=_split),
    TableKind(
        *("goodput", "Goodput", Goodput),
        leads=lambda one, _: [{"batches": "/".join(map(str, one.batches))}],
        note="Goodput is throughput times what a sample is worth.",
    ),
    TableKind(
        *("rounds", "The search's rounds: each split that was tried", Round, _ROUND),
        lambda one, _: [{"round": one.number, "batches": str(one.split)}],
    ),
    TableKind("left_out", "Devices without samples", LeftOut),
    TableKind("accumulation", "With more accumulation", Accumulation, ("gain",), _split),
    TableKind("learning_rate", "Learning rate", LearningRate),
    TableKind("model", "Each device alone", DeviceProbe, _ALONE),
    TableKind("curve", "Throughput over batch size, each device alone", CurvePoint),
    TableKind("planned_curve", "The curves that are planned with", DeviceProbe, None, _curve),
    TableKind("trials", "The search for the batch limit", Trial),
    TableKind("work", "What the probe took and found", DeviceProbe, _WORK),
    TableKind("failures", "What failed", Failure),
    TableKind("telemetry", "Telemetry", Telemetry),
    TableKind(
        "by_global_batch",
        "The fastest split by global batch",
        Predicted,
        None,
        _by_global_batch,
        long=True,
    ),
    TableKind("samples", "Step times", StepTime, None, _timings, _TIMING, long=True),
    TableKind("course", "Telemetry over time", Moment, long=True),
    TableKind(
        *("timeline", "One step, task by task", (StepTask, StepUpdate)),
        *(("segment", "micro_batch", "sent_s", "ready_s", "start_s", "end_s"),),
        lambda one, _: [{"pass": getattr(one, "kind", "update")}],
        long=True,
    ),
    TableKind(
        "devices", "Devices", Device, ("name", "uuid", "bus_id", "memory_bytes", "simulated")
    ),
    TableKind("settings", "Settings and model", OfModel, None, _settings),
    TableKind("environment", "Environment", OfModel, None, _environment),
)


def tables_of(subject: ReportSubject) -> list[Table]:
    """The tables that have rows, in their order."""
    records = [*_within(subject.result, {}, subject)]
    for step in steps_of(subject) if subject.run is None else ():
        records += [
            ({"split": step.title, "device": subject.label(one.device)}, one) for one in step.parts
        ]
    for i, one in enumerate(subject.probes):
        alone = _within(one, {"device": subject.label(i)}, subject) if one is not None else ()
        records += [
            pair for pair in alone if subject.kind == "probe" or not isinstance(pair[1], _OF_TIME)
        ]
    records += [({"device": device.label}, device) for device in subject.devices]
    # The chosen split stands first.
    records.sort(key=lambda pair: str(pair[0].get("split")).startswith("round"))
    return [table for kind in _KINDS if (table := _table(kind, records, subject)) is not None]


def _within(record: Record, lead: Lead, subject: ReportSubject) -> Iterator[tuple[Lead, Record]]:
    """A record and those within it, each with what leads its rows."""
    device = getattr(record, "device", None)
    if isinstance(device, int) and "device" not in lead:
        lead = {**lead, "device": subject.label(device)}
    yield lead, record
    for name, value in record:
        more = {**lead, **_leading(record, name)}
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, Record) and name not in _APART:
                yield from _within(one, more, subject)


def _leading(record: Record, name: str) -> Lead:
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
    kind: TableKind, records: Sequence[tuple[Lead, Record]], subject: ReportSubject
) -> Table | None:
    """The table, without columns that no row knows; None without rows."""
    of = [(lead, one) for lead, one in records if isinstance(one, kind.of)]
    rows = [({**lead, **more}, one) for lead, one in of for more in kind.leads(one, subject)]
    if not rows:
        return None
    keys = sorted(
        dict.fromkeys(key for lead, _ in rows for key in lead), key=lambda key: key != "split"
    )
    texts = {key for lead, _ in rows for key, cell in lead.items() if isinstance(cell, str)}
    leads = [named(key, _LEADS.get(key, Shown()), text=key in texts) for key in keys]
    shown = type(rows[0][1]) if isinstance(kind.of, tuple) else kind.of
    columns = columns_of(shown, *kind.names) if kind.names is not None else ()
    cells = [
        (
            *(lead.get(key, _CHOSEN.get(key)) for key in keys),
            *(column.value(one) for column in columns),
        )
        for lead, one in rows
    ]
    known = [any(cell is not None for cell in column) for column in zip(*cells, strict=True)]
    heads, kept = (
        tuple(compress((*leads, *columns), known)),
        tuple(tuple(compress(row, known)) for row in cells),
    )
    return Table(kind, heads, kept) if heads else None
