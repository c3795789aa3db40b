"""What stands in a table's rows beside a record's own figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpubalance.render.layers import blocks_text, segments_text
from gpubalance.render.step import all_losses
from gpubalance.results.common import OfModel, StepTime, shapes_text
from gpubalance.results.layers import (
    Layers,
    LayersBaselines,
    LayersRound,
    MeasuredBlock,
    Stage,
    StepTask,
    StepUpdate,
)
from gpubalance.results.plan import Goodput, Predicted, Round
from gpubalance.results.probe import DeviceProbe
from gpubalance.results.run import SoloGap
from gpubalance.results.subject import ReportSubject

Lead = Mapping[str, Any]

# What a result was made with, beside its settings.
_ASKED = (
    "probed",
    "batch_multiple",
    "margin_bytes",
    "max_batch",
    "parallel",
    "sync_s",
    "forced",
)


def of_record(_: Any, __: ReportSubject) -> Iterable[Lead]:
    """One row, with the record's own figures only."""
    return ({},)


def of_split(record: Any, subject: ReportSubject) -> Iterator[Lead]:
    """The batches of the record, else of the result."""
    split = getattr(record, "split", subject.split)
    if split:
        yield {"batches": str(split), "global_batch": split.global_batch}
    else:
        yield {}


def of_global_batches(predicted: Predicted, _: ReportSubject) -> Iterator[Lead]:
    """Each prediction by global batch."""
    for prediction in predicted.by_global_batch:
        yield {
            "batches": str(prediction.split),
            "global_batch": prediction.split.global_batch,
            "step_time_s": prediction.step_time_s,
            "throughput": prediction.throughput,
        }


def of_timings(times: StepTime, _: ReportSubject) -> Iterator[Lead]:
    """Each timing, counted from 1, with the time at which it ended."""
    for number, (seconds, at_s) in enumerate(
        zip(times.samples, times.at_s, strict=True), 1
    ):
        yield {"sample": number, "at_s": at_s, "step_time_s": seconds}


def of_gap(gap: SoloGap, subject: ReportSubject) -> Iterator[Lead]:
    """Each cause, between the solo sum and what the devices gave together."""
    rates = {"solo sum": gap.solo_sum}
    for loss in all_losses(subject.devices, gap):
        rates[loss.cause] = -loss.rate or 0.0
    rates["together"] = gap.throughput
    for cause, rate in rates.items():
        yield {"cause": cause, "rate": rate, "part": rate / gap.solo_sum}


def of_planned_curve(probe: DeviceProbe, _: ReportSubject) -> Iterator[Lead]:
    """Each batch of the curve that is planned with."""
    model = probe.step_time_model
    if model is not None:
        for batch, seconds in model.curve or ():
            yield {"batch": batch, "step_time_s": seconds}


def of_stage(stage: Stage, _: ReportSubject) -> Iterator[Lead]:
    """The blocks of a stage."""
    yield {"blocks": blocks_text(stage)}


def of_cut(tried: LayersRound, subject: ReportSubject) -> Iterator[Lead]:
    """The blocks of each device, and how the round ended."""
    blocks = segments_text(tried, [device.label for device in subject.devices])
    outcome: str = tried.outcome
    if tried.ran_out is not None:
        outcome = f"{subject.label(tried.ran_out)} ran out of memory"
    yield {"round": tried.number, "blocks": blocks, "outcome": outcome}


def of_missing_baselines(
    baselines: LayersBaselines, _: ReportSubject
) -> Iterator[Lead]:
    """Why there is no device alone, or no batch split."""
    names = ("solo_best_why_not", "split_why_not")
    yield {name: getattr(baselines, name) for name in names}


def of_block(block: MeasuredBlock, subject: ReportSubject) -> Iterator[Lead]:
    """Each device's compute for the block."""
    number = 0
    if isinstance(subject.result, Layers):
        number = subject.result.blocks.index(block)
    for device, seconds in enumerate(block.compute_s):
        yield {"block": number, "device": subject.label(device), "compute_s": seconds}


def of_task(task: StepTask | StepUpdate, _: ReportSubject) -> Iterator[Lead]:
    """Which pass it is."""
    if isinstance(task, StepTask):
        yield {"pass": task.kind}
    else:
        yield {"pass": "update"}


def of_goodput(goodput: Goodput, _: ReportSubject) -> Iterator[Lead]:
    """The batches."""
    yield {"batches": "/".join(map(str, goodput.batches))}


def of_round(tried: Round, _: ReportSubject) -> Iterator[Lead]:
    """The round's number and split."""
    yield {"round": tried.number, "batches": str(tried.split)}


def of_settings(result: OfModel, subject: ReportSubject) -> Iterator[Lead]:
    """Each setting of the result, and what its model is."""
    if result is not subject.result:
        return
    settings: dict[str, Any] = dict(result.settings)
    settings["created"] = result.created
    if result.model is not None:
        settings["parameters"] = result.model.parameters
        settings["gradient_bytes"] = result.model.gradient_bytes
        if result.model.input_shapes is not None:
            settings["input_shapes"] = shapes_text(result.model.input_shapes)
    for name in _ASKED:
        if hasattr(result, name):
            settings[name] = getattr(result, name)
    for name, value in settings.items():
        yield {"setting": name, "value": value}


def of_environment(result: OfModel, subject: ReportSubject) -> Iterator[Lead]:
    """Each fact of the software and machine."""
    if result is (subject.run or subject.result):
        for name, value in result.environment or ():
            yield {"setting": name, "value": value}
