"""Every number behind a section's answer and charts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gpubalance.render.fields import columns_of
from gpubalance.render.layers import blocks_text
from gpubalance.render.probe import OUTCOMES
from gpubalance.render.report.steps import steps_of
from gpubalance.render.report.table import Lead, Table, table
from gpubalance.render.solo_gap import all_losses
from gpubalance.results.common import StepTime, shapes_text
from gpubalance.results.independent import Independent, OwnModel
from gpubalance.results.layers import Layers, LayersRound, MeasuredBlock, Stage, StepTask
from gpubalance.results.plan import Goodput, LearningRate, LeftOut, Plan, Predicted, Round, Share, SplitPrediction
from gpubalance.results.probe import CurvePoint, DeviceProbe, Trial
from gpubalance.results.run import Baselines, Measurement, Replica, Run, SoloBest
from gpubalance.results.subject import Subject
from gpubalance.results.telemetry import Moment, Telemetry
from gpubalance.settings.device import Device
from gpubalance.settings.shares import Shares, run_text

_TIMING = "A timing is the mean of consecutive steps that were timed together."
# Fields of a device's probe that stand in the table of models.
_IN_MODEL = ("update_s", "solo_best", "solo_best_batch", "sensible", "sensible_batch")
_OWN = (
    *("model", "batch", "solo_throughput", "throughput", "contention", "contention_ci95", "step_time_s"),
    *("solo_input_wait_s", "input_wait_s", "memory_peak_bytes"),
)
# What a result was made with, beside its settings.
_ASKED = ("probed", "batch_multiple", "margin_bytes", "max_batch", "parallel", "sync_s", "forced")


def tables_of(subject: Subject) -> tuple[Table, ...]:
    """The tables in the order of the charts: what devices gave together, the plan, each device alone, the rest."""
    result, run = subject.result, subject.run
    first: list[Table] = []
    if isinstance(result, Independent):
        first = [*_independent(result)]
    elif isinstance(result, Layers):
        first = [*_layers(result)]
    elif run is not None:
        first = [*_run(run)]
    elif isinstance(result, Plan):
        first = [*_predicted_parts(subject)]
    return (
        *(one for one in first if not one.long),
        *_gap(subject),
        *(_plan(result) if isinstance(result, Plan) else ()),
        *_alone(subject),
        *(one for one in first if one.long),
        *_facts(subject),
    )


def _others(of: Baselines | Predicted) -> dict[str, Any]:
    """The splits that the chosen one is compared with, as far as there are any."""
    best = of.best_at_largest_even
    named = {"even": of.even, "largest even": of.largest_even, "the best split of its global batch": best}
    return {name: one for name, one in named.items() if one is not None}


def _run(run: Run) -> Iterator[Table]:
    against = run.baselines
    splits: dict[str, Measurement] = {"chosen": run, **_others(against)}
    parts = [
        ({"split": name, "device": run.devices[replica.device].label}, replica)
        for name, one in splits.items()
        for replica in one.replicas
    ]
    yield from table("step", "Steps", (({"split": name}, one) for name, one in splits.items()), columns_of(Measurement))
    yield from table("parts", "Each device's part of the step", parts, columns_of(Replica))
    even = against.even and against.even.global_batch
    lead = {"global_batch": run.global_batch, "even_global_batch": even, "solo_sum": against.solo_sum}
    ratios = ("speedup_over_even", "speedup_ci95", "scaling_efficiency", "stamp_cost", "warmup_steps", "steps")
    yield from table("against", "Compared with", [(lead, run)], columns_of(Run, *ratios))
    bests = _by_device(run.devices, against.solo_best or ())
    yield from table("solo", "What the devices gave alone", bests, columns_of(SoloBest))
    yield from _samples("samples", (({"split": name}, one.step_time_s) for name, one in splits.items()))
    yield from _telemetry("over the run", ((lead, replica.telemetry) for lead, replica in parts), "chosen")


def _by_device(devices: Sequence[Device], records: Iterable[Any]) -> Iterator[tuple[Lead, Any]]:
    return (({"device": devices[one.device].label}, one) for one in records)


def _samples(id_: str, of: Iterable[tuple[Lead, StepTime | None]], title: str = "Step times") -> Iterator[Table]:
    """Each timing, counted from 1, with the time at which it ended."""
    rows = (
        ({**lead, "sample": number, "at_s": at_s, "step_time_s": seconds}, None)
        for lead, times in of
        if times is not None
        for number, (seconds, at_s) in enumerate(zip(times.samples, times.at_s, strict=True), 1)
    )
    yield from table(id_, title, rows, note=_TIMING, long=True)


def _telemetry(when: str, watched: Iterable[tuple[Lead, Telemetry | None]], split: str = "") -> Iterator[Table]:
    """What each GPU reported: in all, and moment by moment in that split."""
    told = [(lead, one) for lead, one in watched if one is not None]
    yield from table("telemetry", "Telemetry", told, columns_of(Telemetry))
    course = ((lead, moment) for lead, one in told if lead.get("split", "") == split for moment in one.course)
    yield from table("course", f"Telemetry {when}", course, columns_of(Moment), long=True)


def _predicted_parts(subject: Subject) -> Iterator[Table]:
    rows = (
        ({"split": step.title, "device": subject.devices[part.device].label}, part)
        for step in steps_of(subject)
        for part in step.parts
    )
    columns = columns_of(Replica, "batch", "micro_batch", "compute_s", "update_s", "wait_s")
    yield from table("predicted_parts", "Each device's part of the step, predicted", rows, columns)


def _gap(subject: Subject) -> Iterator[Table]:
    gap = subject.solo_gap
    if gap is not None:
        lost = [(cause, -rate or 0.0) for cause, rate in all_losses(subject.devices, gap)]
        told = (("solo sum", gap.solo_sum), *lost, ("together", gap.throughput))
        rows = (({"cause": cause, "rate": rate, "part": rate / gap.solo_sum}, None) for cause, rate in told)
        yield from table("gap", "Why not more", rows)


def _plan(plan: Plan) -> Iterator[Table]:
    predicted, devices = plan.predicted, plan.devices
    shares, left_out = _by_device(devices, plan.shares), _by_device(devices, plan.left_out)
    note = "Up to: the largest micro-batch that is planned with."
    yield from table("shares", "The plan's shares", shares, columns_of(Share), note)
    splits = {"chosen": (plan.split, predicted)} | {name: (one.split, one) for name, one in _others(predicted).items()}
    rows = (({"split": name, **_batches(split)}, one) for name, (split, one) in splits.items())
    yield from table("predicted", "Predicted", rows, columns_of(Predicted))
    goodputs = (({"of": one.of, "batches": "/".join(map(str, one.batches))}, one) for one in predicted.by_goodput)
    columns = columns_of(Goodput, "global_batch", "throughput", "efficiency", "goodput")
    yield from table("goodput", "Goodput", goodputs, columns, "Goodput is throughput times what a sample is worth.")
    totals = ((_batches(one.split), one) for one in predicted.by_global_batch)
    title = "The fastest split by global batch"
    yield from table("by_global_batch", title, totals, columns_of(SplitPrediction), long=True)
    tried = plan.balance.rounds if plan.balance else ()
    rounds = (({"round": one.number, "batches": str(one.split)}, one) for one in tried)
    title = "The search's rounds: each split that was tried"
    of_round = ("throughput", "step_time_s", "sync_s", "imbalance")
    columns = columns_of(Round, "outcome", "predicted_throughput", *(f"measured.{name}" for name in of_round))
    yield from table("rounds", title, rounds, columns)
    yield from table("left_out", "Devices without samples", left_out, columns_of(LeftOut))
    rates = (({"measured_factor": one.measured}, one) for one in [plan.learning_rate] if one is not None)
    columns = columns_of(LearningRate, "from_batch", "to_batch", "linear", "square_root")
    yield from table("learning_rate", "Learning rate", rates, columns)


def _batches(split: Shares) -> Lead:
    return {"batches": str(split), "global_batch": split.global_batch}


def _alone(subject: Subject) -> Iterator[Table]:
    """What each device can do alone: its step-time model, its curve, how its limit was found."""
    probes = [({"device": subject.devices[i].label}, one) for i, one in enumerate(subject.probes) if one is not None]
    points = [
        ({**lead, "batch": point.batch}, point)
        for lead, one in probes
        for point in sorted(one.curve, key=lambda point: point.batch)
    ]
    is_probe = subject.kind == "probe"
    note = f"From {subject.probe_from}." if subject.probe_from and not is_probe else ""
    found = ("step_time_model", "update_s", "batch_limit", "solo_best", "sensible")
    yield from table("model", "Each device alone", probes, columns_of(DeviceProbe, *found), note)
    figures = [column for column in columns_of(CurvePoint) if column.key != "batch"]
    yield from table("curve", "Throughput over batch size, each device alone", points, figures)
    curve = (
        ({**lead, "batch": batch, "step_time_s": seconds}, None)
        for lead, one in probes
        for batch, seconds in (one.step_time_model and one.step_time_model.curve) or ()
    )
    yield from table("planned_curve", "The curves that are planned with", curve)
    watched = ((lead, point.telemetry) for lead, point in points if point.telemetry is not None)
    yield from table("health", "Telemetry, each device alone", watched, columns_of(Telemetry))
    trials = (
        ({**lead, "trial": number, "outcome": OUTCOMES[trial.outcome]}, trial)
        for lead, one in probes
        for number, trial in enumerate(one.batch_limit.trials if one.batch_limit else (), 1)
    )
    columns = columns_of(Trial, "batch", "seconds", "memory_peak_bytes", "fresh", "reason")
    yield from table("trials", "The search for the batch limit", trials, columns)
    work = (
        ({**lead, "failures": "; ".join(failure.message for failure in one.failures) or "none"}, one)
        for lead, one in probes
    )
    figures = [column for column in columns_of(DeviceProbe) if column.key not in _IN_MODEL]
    yield from table("work", "What the probe took and found", work, figures)
    if is_probe:
        times = ((lead, point.step_time_s) for lead, point in points)
        yield from _samples("curve_samples", times, "Step times, each device alone")


def _independent(result: Independent) -> Iterator[Table]:
    parts = [
        ({"device": result.devices[one.device].label, "failure": one.failure.message if one.failure else "none"}, one)
        for one in result.replicas
    ]
    yield from table("replicas", "Each device, alone and at once", parts, columns_of(OwnModel, *_OWN))
    joint = result.joint
    gave: Lead = {
        "joint_batches": str(joint.split) if joint else None,
        "joint_throughput": joint.throughput.median if joint else None,
    }
    columns = columns_of(Independent, "throughput", "solo_sum", "overlap_s", "complete")
    yield from table("sum", "All at once", [(gave, result)], columns)
    both = [
        ({**lead, "measured": how}, times, told)
        for lead, one in _by_device(result.devices, result.replicas)
        for how, times, told in (
            ("at once", one.step_time_s, one.telemetry),
            ("alone", one.solo_step_time_s, one.solo_telemetry),
        )
    ]
    yield from _samples("samples", ((lead, times) for lead, times, _ in both))
    yield from _telemetry("over the measurement", ((lead, told) for lead, _, told in both))


def _layers(result: Layers) -> Iterator[Table]:
    labels = [device.label for device in result.devices]
    stages = (({"device": labels[one.device], "blocks": blocks_text(one)}, one) for one in result.stages)
    yield from table("stages", "Each device's part of a step", stages, columns_of(Stage))
    predicted = {"predicted_s": result.predicted.step_time_s}
    yield from table("step", "The step", [(predicted, result)], columns_of(Layers))
    rounds = (({"round": one.number, **_cut(one, labels)}, one) for one in result.rounds)
    yield from table("rounds", "The search for the cut", rounds, columns_of(LayersRound, "predicted_s", "step_time_s"))
    yield from table("held-against", "What it is compared with", ((row, None) for row in _held_against(result, labels)))
    blocks = (
        ({"block": number, "device": label, "compute_s": seconds}, one)
        for number, one in enumerate(result.blocks)
        for label, seconds in zip(labels, one.compute_s, strict=True)
    )
    title = "Blocks, and a micro-batch's compute on each device"
    yield from table("blocks", title, blocks, columns_of(MeasuredBlock))
    yield from _samples("samples", [({}, result.step_time_s)])
    tasks: list[tuple[Lead, Any]] = [
        *(({"device": labels[one.device], "pass": one.kind}, one) for one in result.timeline.tasks),
        *(({"device": labels[one.device], "pass": "update"}, one) for one in result.timeline.updates),
    ]
    columns = columns_of(StepTask, "segment", "micro_batch", "sent_s", "ready_s", "start_s", "end_s")
    yield from table("timeline", "One step, task by task", tasks, columns, long=True)
    watched = ((lead, one.telemetry) for lead, one in _by_device(result.devices, result.stages))
    yield from _telemetry("over the measurement", watched)


def _cut(one: LayersRound, labels: Sequence[str]) -> Lead:
    stages = ", ".join(f"{labels[device]} {run_text(first, last)}" for first, last, device in one.segments)
    outcome = one.outcome if one.ran_out is None else f"{labels[one.ran_out]} ran out of memory"
    return {"blocks": stages, "outcome": outcome}


def _held_against(result: Layers, labels: Sequence[str]) -> Iterator[Lead]:
    against = result.baselines
    best, split = against.solo_best, against.split
    yield {
        "held_against": f"{labels[best.device]} alone, batch {best.batch}" if best else "one device alone",
        "throughput": best and best.throughput,
        "measured": "by its probe" if best else None,
        "why_not": against.solo_best_why_not,
    }
    yield {
        "held_against": f"the batch split {split.split}" if split else "the batch split",
        "throughput": split and split.throughput,
        "measured": ("here" if split.measured else "predicted") if split else None,
        "why_not": against.split_why_not,
    }


def _facts(subject: Subject) -> Iterator[Table]:
    """What was measured where."""
    result, ran = subject.result, subject.run or subject.result
    devices = (({"device": device.label}, device) for device in subject.devices)
    names = ("name", "uuid", "bus_id", "memory_bytes", "simulated")
    yield from table("devices", "Devices", devices, columns_of(Device, *names))
    told: dict[str, Any] = {**dict(result.settings), "created": result.created}
    if result.model is not None:
        shapes = result.model.input_shapes
        told |= {"parameters": result.model.parameters, "gradient_bytes": result.model.gradient_bytes}
        told |= {"input_shapes": shapes_text(shapes)} if shapes is not None else {}
    told |= {name: getattr(result, name) for name in _ASKED if hasattr(result, name)}
    for id_, title, values in (
        ("settings", "Settings and model", told),
        ("environment", "Environment", dict(ran.environment or ())),
    ):
        rows = (({"setting": name, "value": value}, None) for name, value in values.items())
        yield from table(id_, title, rows)
