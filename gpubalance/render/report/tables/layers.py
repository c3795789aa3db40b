"""What a model cut over devices gave: its stages, blocks, rounds, what it is compared with, one step."""

from __future__ import annotations

from collections.abc import Iterator

from gpubalance.render.layers import blocks_text
from gpubalance.render.report.subject import Subject
from gpubalance.render.report.table import Table
from gpubalance.render.report.tables.rows import TELEMETRY_LABELS, Row, fields, interval, table, telemetry, timings
from gpubalance.results.layers import Layers, LayersRound

_PARTS = ("forward_s", "backward_s", "transfer_s", "update_s", "bubble_s", "in_flight")
_MEMORY = ("memory_peak_bytes", "memory_predicted_bytes")


def tables(subject: Subject) -> tuple[Table, ...]:
    """The step and each device's part of it, the blocks, the cuts that were tried; none for another kind of result."""
    result = subject.layers
    if result is None:
        return ()
    labels = [device.label for device in subject.devices]
    stages: list[Row] = [
        {"device": labels[one.device], "blocks": blocks_text(one), **fields(one, *_PARTS, *_MEMORY)}
        for one in result.stages
    ]
    return (
        *table("stages", "Each device's part of a step", stages),
        *table("step", "The step", [_step(result)]),
        *table("rounds", "The search for the cut", _rounds(result, labels)),
        *table("held-against", "What it is compared with", _baselines(result, labels)),
        *table("blocks", "Blocks, and a micro-batch's compute on each device", _blocks(result, labels)),
    )


def long_tables(subject: Subject) -> tuple[Table, ...]:
    """The timings behind the median, one step task by task, and telemetry."""
    result = subject.layers
    if result is None:
        return ()
    note = "A timing is the mean of consecutive steps that were timed together."
    watched = [(subject.devices[one.device].label, one.telemetry) for one in result.stages]
    return (
        *table("samples", "Step times", timings(result.step_time_s), note, long=True),
        *table("timeline", "One step, task by task", _timeline(subject, result), long=True),
        *table(
            "telemetry",
            "Telemetry",
            ({"device": label, **telemetry(told)} for label, told in watched if told),
            labels=TELEMETRY_LABELS,
        ),
    )


def _step(result: Layers) -> Row:
    return {
        **fields(result, "micro_batch", "micro_batches", "global_batch", "schedule"),
        "throughput": result.throughput.median,
        **interval("throughput", result.throughput.ci95),
        "step_time_s": result.step_time_s.median,
        "mad_s": result.step_time_s.mad,
        **interval("step_time", result.step_time_s.ci95, "_s"),
        "predicted_s": result.predicted.step_time_s,
        **fields(result, "bubble", "bubble_bound", "stamp_cost", "warmup_steps", "steps"),
        "steps_per_sample": result.step_time_s.steps_per_sample,
        "speedup_over_split": result.speedup_over_split,
        "complete": result.complete,
    }


def _rounds(result: Layers, labels: list[str]) -> Iterator[Row]:
    for one in result.rounds:
        stages = ", ".join(f"{labels[device]} {first}–{last}" for first, last, device in one.segments)
        yield {
            "round": one.number,
            "blocks": stages,
            **fields(one, "predicted_s", "step_time_s"),
            "outcome": _outcome(one, labels),
        }


def _outcome(one: LayersRound, labels: list[str]) -> str:
    return one.outcome if one.ran_out is None else f"{labels[one.ran_out]} ran out of memory"


def _baselines(result: Layers, labels: list[str]) -> Iterator[Row]:
    best, split = result.baselines.solo_best, result.baselines.split
    yield {
        "held_against": f"{labels[best.device]} alone, batch {best.batch}" if best else "one device alone",
        "throughput": best.throughput if best else None,
        "measured": "by its probe" if best else None,
        "why_not": result.baselines.solo_best_why_not,
    }
    yield {
        "held_against": f"the batch split {split.split}" if split else "the batch split",
        "throughput": split.throughput if split else None,
        "measured": ("here" if split.measured else "predicted") if split else None,
        "why_not": result.baselines.split_why_not,
    }


def _blocks(result: Layers, labels: list[str]) -> Iterator[Row]:
    for number, one in enumerate(result.blocks):
        for label, seconds in zip(labels, one.compute_s, strict=True):
            yield {
                "block": number,
                **fields(one, "name", "calls", "weights_bytes", "crossing_bytes"),
                "device": label,
                "compute_s": seconds,
            }


def _timeline(subject: Subject, result: Layers) -> Iterator[Row]:
    for one in result.timeline.tasks:
        yield {
            "device": subject.devices[one.device].label,
            "segment": one.segment,
            "pass": one.kind,
            "number": one.micro_batch,
            **fields(one, "sent_s", "ready_s", "start_s", "end_s"),
        }
    for update in result.timeline.updates:
        yield {
            "device": subject.devices[update.device].label,
            "segment": None,
            "pass": "update",
            "number": None,
            "sent_s": None,
            "ready_s": None,
            **fields(update, "start_s", "end_s"),
        }
