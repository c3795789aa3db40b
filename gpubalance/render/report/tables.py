"""Every number behind a section's answer and charts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gpubalance.render.layers import blocks_text
from gpubalance.render.probe import OUTCOMES
from gpubalance.render.report.steps import steps_of
from gpubalance.render.report.table import Add, Lead, Rows, Tables
from gpubalance.render.solo_gap import all_losses
from gpubalance.results.common import StepTime, shapes_text
from gpubalance.results.independent import Independent
from gpubalance.results.layers import Layers, LayersRound
from gpubalance.results.plan import Plan, Predicted
from gpubalance.results.queue import Queue
from gpubalance.results.run import Baselines, Measurement, Run
from gpubalance.results.subject import Subject
from gpubalance.results.telemetry import Telemetry
from gpubalance.settings.device import Device
from gpubalance.settings.shares import Shares, run_text

_TIMING = "A timing is the mean of consecutive steps that were timed together."
_WORK = (
    *("flops_per_sample", "flops_per_s", "peak_flops_per_s", "mfu", "samples_per_joule", "steady", "on_line"),
    *("measured_s", "elapsed_s", "children", "complete"),
)
_OWN = (
    *("model", "batch", "solo_throughput", "throughput", "contention", "contention_ci95", "step_time_s"),
    *("solo_input_wait_s", "input_wait_s", "memory_peak_bytes"),
)
# What a result was made with, beside its settings.
_ASKED = ("probed", "batch_multiple", "margin_bytes", "max_batch", "parallel", "sync_s", "forced")


def tables_of(subject: Subject) -> Tables:
    """The tables in the order of the charts: what devices gave together, the plan, each device alone, the rest."""
    together, found = Tables(), Tables()
    _together(together.add, subject)
    found += [one for one in together if not one.long]
    _gap(found.add, subject)
    if subject.plan is not None:
        _plan(found.add, subject.plan)
    _alone(found.add, subject)
    found += [one for one in together if one.long]
    _facts(found.add, subject)
    return found


def _together(add: Add, subject: Subject) -> None:
    """What was run or, for a plan that was not, what is predicted."""
    if subject.independent is not None:
        _independent(add, subject.independent)
    elif subject.layers is not None:
        _layers(add, subject.layers)
    elif subject.queue is not None:
        _queue(add, subject.queue)
    elif subject.run is not None:
        _run(add, subject.run)
    else:
        parts = [(step.title, part) for step in steps_of(subject) for part in step.parts]
        rows = [({"split": title, "device": subject.label(one.device)}, one) for title, one in parts]
        add("predicted_parts", "Each device's part of the step, predicted", rows)


def _others(of: Baselines | Predicted) -> dict[str, Any]:
    """The splits that the chosen one is compared with, as far as there are any."""
    best = of.best_at_largest_even
    named = {"even": of.even, "largest even": of.largest_even, "the best split of its global batch": best}
    return {name: one for name, one in named.items() if one is not None}


def _run(add: Add, run: Run) -> None:
    against, splits = run.baselines, {"chosen": run, **_others(run.baselines)}
    parts = [
        ({"split": name, "device": run.label(replica.device)}, replica)
        for name, one in splits.items()
        for replica in one.replicas
    ]
    add("step", "Steps", (({"split": name}, one) for name, one in splits.items()), of=Measurement)
    add("parts", "Each device's part of the step", parts)
    even = against.even and against.even.global_batch
    lead = {"global_batch": run.global_batch, "even_global_batch": even, "solo_sum": against.solo_sum}
    ratios = ("speedup_over_even", "speedup_ci95", "scaling_efficiency", "stamp_cost", "warmup_steps", "steps")
    add("against", "Compared with", [(lead, run)], *ratios)
    add("solo", "What the devices gave alone", _by_device(run.devices, against.solo_best or ()))
    _samples(add, "samples", (({"split": name}, one.step_time_s) for name, one in splits.items()))
    _telemetry(add, "over the run", ((lead, replica.telemetry) for lead, replica in parts), "chosen")


def _by_device(devices: Sequence[Device], records: Iterable[Any]) -> Iterator[tuple[Lead, Any]]:
    return (({"device": devices[one.device].label}, one) for one in records)


def _samples(add: Add, id_: str, of: Iterable[tuple[Lead, StepTime | None]], title: str = "Step times") -> None:
    """Each timing, counted from 1, with the time at which it ended."""
    rows = (
        ({**lead, "sample": number, "at_s": at_s, "step_time_s": seconds}, None)
        for lead, times in of
        if times is not None
        for number, (seconds, at_s) in enumerate(zip(times.samples, times.at_s, strict=True), 1)
    )
    add(id_, title, rows, note=_TIMING, long=True)


def _telemetry(add: Add, when: str, watched: Iterable[tuple[Lead, Telemetry | None]], split: str = "") -> None:
    """What each GPU reported: in all, and moment by moment in that split."""
    told = [(lead, one) for lead, one in watched if one is not None]
    add("telemetry", "Telemetry", told)
    course = ((lead, moment) for lead, one in told if lead.get("split", "") == split for moment in one.course)
    add("course", f"Telemetry {when}", course, long=True)


def _gap(add: Add, subject: Subject) -> None:
    gap = subject.solo_gap
    if gap is not None:
        lost = [(cause, -rate or 0.0) for cause, rate in all_losses(subject.devices, gap)]
        told = (("solo sum", gap.solo_sum), *lost, ("together", gap.throughput))
        rows = (({"cause": cause, "rate": rate, "part": rate / gap.solo_sum}, None) for cause, rate in told)
        add("gap", "Why not more", rows)


def _plan(add: Add, plan: Plan) -> None:
    predicted, devices, rate = plan.predicted, plan.devices, plan.learning_rate
    note = "Up to: the largest micro-batch that is planned with."
    add("shares", "The plan's shares", _by_device(devices, plan.shares), note=note)
    others = {name: (one.split, one) for name, one in _others(predicted).items()}
    splits = {"chosen": (plan.split, predicted), **others}
    rows: Rows = (({"split": name, **_batches(split)}, one) for name, (split, one) in splits.items())
    add("predicted", "Predicted", rows)
    rows = (({"of": one.of, "batches": "/".join(map(str, one.batches))}, one) for one in predicted.by_goodput)
    note = "Goodput is throughput times what a sample is worth."
    add("goodput", "Goodput", rows, "global_batch", "throughput", "efficiency", "goodput", note=note)
    rows = ((_batches(one.split), one) for one in predicted.by_global_batch)
    add("by_global_batch", "The fastest split by global batch", rows, long=True)
    tried = plan.balance.rounds if plan.balance else ()
    rows = (({"round": one.number, "batches": str(one.split)}, one) for one in tried)
    measured = (f"measured.{name}" for name in ("throughput", "step_time_s", "sync_s", "imbalance"))
    title = "The search's rounds: each split that was tried"
    add("rounds", title, rows, "outcome", "predicted_throughput", *measured)
    add("left_out", "Devices without samples", _by_device(devices, plan.left_out))
    rows = [({"measured_factor": rate.measured}, rate)] if rate else ()
    add("learning_rate", "Learning rate", rows, "from_batch", "to_batch", "linear", "square_root")


def _batches(split: Shares) -> Lead:
    return {"batches": str(split), "global_batch": split.global_batch}


def _alone(add: Add, subject: Subject) -> None:
    """What each device can do alone: its step-time model, its curve, how its limit was found."""
    probes = [({"device": subject.label(i)}, one) for i, one in enumerate(subject.probes) if one is not None]
    points = [(lead, point) for lead, one in probes for point in sorted(one.curve, key=lambda point: point.batch)]
    is_probe = subject.kind == "probe"
    note = f"From {subject.probe_from}." if subject.probe_from and not is_probe else ""
    found = ("step_time_model", "update_s", "batch_limit", "solo_best", "sensible")
    add("model", "Each device alone", probes, *found, note=note)
    add("curve", "Throughput over batch size, each device alone", points)
    curve = (
        ({**lead, "batch": batch, "step_time_s": seconds}, None)
        for lead, one in probes
        for batch, seconds in (one.step_time_model and one.step_time_model.curve) or ()
    )
    add("planned_curve", "The curves that are planned with", curve)
    by_batch = [({**lead, "batch": point.batch}, point) for lead, point in points]
    watched = ((lead, point.telemetry) for lead, point in by_batch if point.telemetry is not None)
    add("health", "Telemetry, each device alone", watched)
    trials = (
        ({**lead, "trial": number, "outcome": OUTCOMES[trial.outcome]}, trial)
        for lead, one in probes
        for number, trial in enumerate(one.batch_limit.trials if one.batch_limit else (), 1)
    )
    columns = ("batch", "seconds", "memory_peak_bytes", "fresh", "reason")
    add("trials", "The search for the batch limit", trials, *columns)
    failures = ("; ".join(failure.message for failure in one.failures) or "none" for _, one in probes)
    work = (({**lead, "failures": told}, one) for (lead, one), told in zip(probes, failures, strict=True))
    add("work", "What the probe took and found", work, *_WORK)
    if is_probe:
        times = ((lead, point.step_time_s) for lead, point in by_batch)
        _samples(add, "curve_samples", times, "Step times, each device alone")


def _independent(add: Add, result: Independent) -> None:
    leads = _by_device(result.devices, result.replicas)
    parts = (({**lead, "failure": one.failure.message if one.failure else "none"}, one) for lead, one in leads)
    add("replicas", "Each device, alone and at once", parts, *_OWN)
    joint = result.joint
    lead = {
        "joint_batches": str(joint.split) if joint else None,
        "joint_throughput": joint.throughput.median if joint else None,
    }
    add("sum", "All at once", [(lead, result)], "throughput", "solo_sum", "overlap_s", "complete")
    both = [
        ({**lead, "measured": how}, times, told)
        for lead, one in _by_device(result.devices, result.replicas)
        for how, times, told in (
            ("at once", one.step_time_s, one.telemetry),
            ("alone", one.solo_step_time_s, one.solo_telemetry),
        )
    ]
    _samples(add, "samples", ((lead, times) for lead, times, _ in both))
    _telemetry(add, "over the measurement", ((lead, told) for lead, _, told in both))


def _layers(add: Add, result: Layers) -> None:
    labels = [device.label for device in result.devices]
    rows: Rows = (({"device": labels[one.device], "blocks": blocks_text(one)}, one) for one in result.stages)
    add("stages", "Each device's part of a step", rows)
    add("step", "The step", [({"predicted_s": result.predicted.step_time_s}, result)])
    rows = (({"round": one.number, **_cut(one, labels)}, one) for one in result.rounds)
    add("rounds", "The search for the cut", rows, "predicted_s", "step_time_s")
    add("held-against", "What it is compared with", _held_against(result, labels))
    rows = (
        ({"block": number, "device": label, "compute_s": seconds}, one)
        for number, one in enumerate(result.blocks)
        for label, seconds in zip(labels, one.compute_s, strict=True)
    )
    add("blocks", "Blocks, and a micro-batch's compute on each device", rows)
    _samples(add, "samples", [({}, result.step_time_s)])
    rows = [
        *(({"device": labels[one.device], "pass": one.kind}, one) for one in result.timeline.tasks),
        *(({"device": labels[one.device], "pass": "update"}, one) for one in result.timeline.updates),
    ]
    columns = ("segment", "micro_batch", "sent_s", "ready_s", "start_s", "end_s")
    add("timeline", "One step, task by task", rows, *columns, long=True)
    watched = (({"device": labels[one.device]}, one.telemetry) for one in result.stages)
    _telemetry(add, "over the measurement", watched)


def _queue(add: Add, result: Queue) -> None:
    add("shares", "What each device did", _by_device(result.devices, result.shares))
    add("queue", "All commands", [({}, result)], "makespan_s", "alone_s", "speedup", "complete")
    tries = (
        ({"number": each.number, "device": result.label(one.device), "command": each.command}, one)
        for each in result.commands
        for one in each.tries
    )
    add("tries", "The commands, and where each ran", tries)


def _cut(one: LayersRound, labels: Sequence[str]) -> Lead:
    stages = ", ".join(f"{labels[device]} {run_text(first, last)}" for first, last, device in one.segments)
    outcome = one.outcome if one.ran_out is None else f"{labels[one.ran_out]} ran out of memory"
    return {"blocks": stages, "outcome": outcome}


def _held_against(result: Layers, labels: Sequence[str]) -> Rows:
    against = result.baselines
    best, split = against.solo_best, against.split
    alone = f"{labels[best.device]} alone, batch {best.batch}" if best else "one device alone"
    the_split = f"the batch split {split.split}" if split else "the batch split"
    how = ("here" if split.measured else "predicted") if split else None
    for name, rate, measured, why_not in (
        (alone, best and best.throughput, "by its probe" if best else None, against.solo_best_why_not),
        (the_split, split and split.throughput, how, against.split_why_not),
    ):
        yield {"held_against": name, "throughput": rate, "measured": measured, "why_not": why_not}, None


def _facts(add: Add, subject: Subject) -> None:
    """What was measured where."""
    result, ran = subject.result, subject.run or subject.result
    devices = (({"device": device.label}, device) for device in subject.devices)
    add("devices", "Devices", devices, "name", "uuid", "bus_id", "memory_bytes", "simulated")
    if isinstance(result, Queue) or isinstance(ran, Queue):
        return
    told: dict[str, Any] = {**dict(result.settings), "created": result.created}
    if result.model is not None:
        shapes = result.model.input_shapes
        told |= {"parameters": result.model.parameters, "gradient_bytes": result.model.gradient_bytes}
        told |= {"input_shapes": shapes_text(shapes)} if shapes is not None else {}
    told |= {name: getattr(result, name) for name in _ASKED if hasattr(result, name)}
    facts = (("settings", "Settings and model", told), ("environment", "Environment", dict(ran.environment or ())))
    for id_, title, values in facts:
        add(id_, title, (({"setting": name, "value": value}, None) for name, value in values.items()))
