"""What stands in a table's rows beside a record's own figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gpubalance.render.layers import blocks_text, segments_text
from gpubalance.render.run import all_losses
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
from gpubalance.results.plan import (
    Goodput,
    Plan,
    Predicted,
    Round,
    Share,
    SplitPrediction,
)
from gpubalance.results.probe import DeviceProbe
from gpubalance.results.run import Measurement, Replica, SoloGap
from gpubalance.results.subject import ReportSubject
from gpubalance.settings.batch_split import BatchSplit, pieces


class StepBar(NamedTuple):
    """A step of a split; sync, input wait and rare slow steps are the same for all devices."""

    title: str
    throughput: float
    step_time_s: float
    sync_s: float
    input_wait_s: float
    slow_s: float
    parts: Sequence[Replica]

    @property
    def batches(self) -> tuple[int, ...]:
        """The batches of the devices that have samples."""
        return tuple(part.batch for part in self.parts)


def steps_of(subject: ReportSubject) -> list[StepBar]:
    """The steps of the even split and of the chosen one, as far as known; none for a probe."""
    run = subject.run
    if run is None:
        if subject.plan is None:
            return []
        return list(_predicted_steps(subject, subject.plan))
    steps = []
    even = run.baselines.even
    # For a run of the even split, the baseline is that run itself.
    if even and even.step_time_s != run.step_time_s:
        steps.append(_measured_step("Even split", even))
    return [*steps, _measured_step("Chosen split", run)]


def _measured_step(title: str, measured: Measurement) -> StepBar:
    return StepBar(
        title,
        measured.throughput.median,
        measured.step_time_s.median,
        measured.sync_s,
        measured.input_wait_s,
        measured.slow_s,
        measured.replicas,
    )


def _predicted_steps(subject: ReportSubject, plan: Plan) -> Iterator[StepBar]:
    shares = [share for share in plan.shares if share.batch]
    even = plan.predicted.even
    if even is not None and even.split != plan.split.without_idle:
        even_shares = _even_shares(subject, shares, even.split)
        if len(even_shares) == len(shares):
            yield _predicted_step("Even split, predicted", even, plan, even_shares)
    yield _predicted_step("Chosen split, predicted", plan.predicted, plan, shares)


def _even_shares(
    subject: ReportSubject, shares: Sequence[Share], even: BatchSplit
) -> list[Share]:
    """The shares with the batches of the even split, of devices with a probe to predict it by."""
    even_shares = []
    for share, batch, micro in zip(
        shares, even.batches, even.micro_batches, strict=True
    ):
        probe = subject.probes[share.device]
        if probe is None or probe.step_time_model is None:
            continue
        compute_s = 0.0
        for count, size in pieces(batch, micro):
            step_s = probe.step_time_model.planned.measured_s(size)
            compute_s += count * (step_s - share.update_s)
        sizes = {"batch": batch, "micro_batch": micro, "compute_s": compute_s}
        even_shares.append(share.model_copy(update=sizes))
    return even_shares


def _predicted_step(
    title: str,
    predicted: Predicted | SplitPrediction,
    plan: Plan,
    shares: Sequence[Share],
) -> StepBar:
    """Each device waits for the slowest."""
    step_s = predicted.step_time_s
    slowest_s = max(share.compute_s + share.update_s for share in shares)
    replicas = [
        Replica(
            device=share.device,
            batch=share.batch,
            micro_batch=share.micro_batch,
            throughput=share.batch / step_s,
            compute_s=share.compute_s,
            update_s=share.update_s,
            wait_s=slowest_s - share.compute_s - share.update_s,
            utilisation=share.compute_s / step_s,
            memory_peak_bytes=None,
        )
        for share in shares
    ]
    return StepBar(
        title, predicted.throughput, step_s, plan.predicted.sync_s, 0.0, 0.0, replicas
    )


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
