"""The kinds of tables that a report has, in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from gpubalance.render.report import leads
from gpubalance.render.report.leads import Lead
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
from gpubalance.results.queue import Queue, QueueShare, Try
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
from gpubalance.settings.record import Record

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
    TableKind("replicas", "Each device, alone and at once", OwnModel),
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
        "The search for the cut",
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
        "Blocks, and a micro-batch's compute on each device",
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
        note="Up to: the largest micro-batch that is planned with.",
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
        note="Goodput is throughput times what a sample is worth.",
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
        "The curves that are planned with",
        DeviceProbe,
        None,
        leads.of_planned_curve,
    ),
    TableKind("trials", "The search for the batch limit", Trial),
    TableKind("work", "What the probe took and found", DeviceProbe, _WORK),
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
