"""The record of what was measured of a cut model."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.jobs.environment import environment
from gpubalance.jobs.layers.known import Planned
from gpubalance.jobs.layers.series import PipeSeries
from gpubalance.jobs.measure.warnings import of_figures, shares_assumed
from gpubalance.numbers.stats import mean, median
from gpubalance.planning.pipeline.bound import bubble_bound
from gpubalance.planning.pipeline.graph import Graph
from gpubalance.planning.pipeline.parts import StageParts, parts_of, sent_at
from gpubalance.planning.pipeline.segments import Link
from gpubalance.planning.pipeline.timeline import Timeline
from gpubalance.results.common import Warning_, now
from gpubalance.results.layers import (
    Layers,
    LayersBaselines,
    LayersRound,
    MeasuredBlock,
    PredictedStep,
    Stage,
    StepTask,
    StepTimeline,
    StepUpdate,
)
from gpubalance.settings.requests import LayersRequest
from gpubalance.workers.messages import Ready


def layers_result(
    request: LayersRequest,
    graph: Graph,
    series: PipeSeries,
    facts: Ready,
    driver: str | None,
    baselines: LayersBaselines,
    rounds: Sequence[LayersRound],
    *,
    complete: bool,
    noted: Sequence[Warning_] = (),
) -> Layers:
    """The result of a cut that has timings with and without stamps."""
    planned, step_time_s = series.planned, series.step_time_s
    stages = tuple(_stages(series))
    split = baselines.split
    origin_s = series.timings.began_s
    return Layers(
        created=now(),
        settings=request.settings,
        environment=environment(facts, driver),
        model=facts.model,
        devices=request.devices,
        cuts=request.cuts,
        blocks=_blocks(graph, planned),
        stages=stages,
        micro_batch=planned.problem.micro_batch,
        micro_batches=planned.problem.micro_batches,
        global_batch=planned.problem.micro_batch * planned.problem.micro_batches,
        step_time_s=series.timings.step_time(origin_s),
        throughput=series.timings.throughput,
        predicted=PredictedStep(step_time_s=planned.step_time_s, ci95=planned.ci95),
        bubble=mean([(stage.bubble_s + stage.transfer_s) / step_time_s for stage in stages]),
        bubble_bound=bubble_bound(len(stages), planned.problem.micro_batches),
        timeline=timeline_record(series.usual, planned.placement.links),
        baselines=baselines,
        rounds=tuple(rounds),
        warmup_steps=series.warmup_steps,
        steps=series.timings.steps + len(series.timelines),
        stamp_cost=series.stamp_cost,
        speedup_over_split=split and series.timings.throughput.median / split.throughput,
        forced=request.force and (baselines.solo_best or split) is not None,
        complete=complete,
        warnings=(*noted, *_warnings(request, series)),
    )


def timeline_record(timeline: Timeline, links: Sequence[Link]) -> StepTimeline:
    """The record of a step's tasks, in the order in which they began."""
    sent = sent_at(timeline, links)
    return StepTimeline(
        tasks=tuple(
            StepTask(
                segment=timed.task.segment,
                kind=timed.task.kind,
                micro_batch=timed.task.micro_batch,
                device=timed.device,
                sent_s=sent[timed.task],
                ready_s=max(timed.ready_s, sent[timed.task]),  # 0 if nothing comes from another device
                start_s=timed.start_s,
                end_s=timed.end_s,
            )
            for timed in sorted(timeline.tasks, key=lambda timed: timed.start_s)
        ),
        updates=tuple(StepUpdate(device=device, start_s=start, end_s=end) for device, start, end in timeline.updates),
        step_time_s=timeline.step_time_s,
    )


def _blocks(graph: Graph, planned: Planned) -> tuple[MeasuredBlock, ...]:
    loads = planned.problem.loads
    return tuple(
        MeasuredBlock(
            name=block.name,
            calls=block.calls,
            weights_bytes=block.weights_bytes,
            crossing_bytes=graph.crossing_bytes[number],
            compute_s=tuple(_known(load.forward_s[number] + load.backward_s[number]) for load in loads),
        )
        for number, block in enumerate(graph.blocks)
    )


def _known(seconds: float) -> float | None:
    return None if seconds == float("inf") else seconds


def _stages(series: PipeSeries) -> list[Stage]:
    """The stages: each part is the median fraction of the stamped steps, times a step without; the bubble is the rest.

    If steps differ much the medians may add up to more than a step: then all are scaled down by the same factor.
    """
    planned = series.planned
    placed = planned.placement
    steps = [parts_of(timeline, placed.links) for timeline in series.timelines]
    told = series.timings.sensors.telemetry(series.timings.began_s)
    peaks = series.timings.memory_peak_bytes
    stages = []
    for parts in zip(*steps, strict=True):
        device = parts[0].device
        names = ("forward_s", "backward_s", "transfer_s", "update_s")
        part_of = {name: _median_part(parts, name, series.timelines) for name in names}
        step_s = series.step_time_s / max(1.0, sum(part_of.values()))
        seconds = {name: step_s * part for name, part in part_of.items()}
        known = planned.problem.loads[device].memory_bytes is not None
        stages.append(
            Stage(
                device=device,
                segments=tuple((one.first, one.last) for one in placed.segments if one.device == device),
                **seconds,
                bubble_s=max(0.0, series.step_time_s - sum(seconds.values())),
                in_flight=placed.in_flight[device],
                memory_peak_bytes=peaks[device],
                memory_predicted_bytes=round(placed.peak_bytes[device]) if known else None,
                telemetry=told[device],
            )
        )
    return sorted(stages, key=lambda stage: stage.segments)


def _median_part(parts: Sequence[StageParts], name: str, steps: Sequence[Timeline]) -> float:
    return median([getattr(part, name) / step.step_time_s for part, step in zip(parts, steps, strict=True)])


def _warnings(request: LayersRequest, series: PipeSeries) -> list[Warning_]:
    """The warnings about the figures."""
    slowed = [
        (device, reasons) for device, reasons in zip(request.devices, series.timings.throttled, strict=True) if reasons
    ]
    figures = of_figures(
        request.settings.model, slowed, [series.timings], steady=series.steady, stamp_cost=series.stamp_cost
    )
    return [*([shares_assumed()] if request.devices[0].profile is not None else []), *figures]
