"""The record of what was measured of a cut model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpubalance.jobs.environment import environment
from gpubalance.jobs.layers.series import CutSeries
from gpubalance.jobs.measure.warnings import of_figures, resumed, warning
from gpubalance.numbers.stats import mean, median
from gpubalance.planning.pipeline.place import Placement
from gpubalance.planning.pipeline.timeline import Timed, Timeline, bubble_bound, parts_of
from gpubalance.results.common import Warning_, now
from gpubalance.results.layers import (
    Layers,
    MeasuredBlock,
    PredictedStep,
    Stage,
    StepTask,
    StepTimeline,
    StepUpdate,
)
from gpubalance.settings.requests import LayersRequest
from gpubalance.workers.messages import Ready

if TYPE_CHECKING:
    from gpubalance.jobs.layers.layers import Cutting

_PARTS = ("forward_s", "backward_s", "transfer_s", "update_s")


def layers_result(found: Cutting, series: CutSeries, facts: Ready) -> Layers:
    """The result of a cut that has timings with and without stamps."""
    request, placed = found.request, series.placed
    stages = sorted(_stages(series), key=lambda stage: stage.segments)
    baselines = found.whole.baselines
    split = baselines.split
    noted = [*resumed(found.again["rounds"], "rounds"), *resumed(found.again["windows"])]
    return Layers(
        created=now(),
        settings=request.settings,
        environment=environment(facts, found.driver),
        model=facts.model,
        devices=request.devices,
        cuts=request.cuts,
        blocks=tuple(_blocks(placed)),
        stages=tuple(stages),
        micro_batch=placed.problem.micro_batch,
        micro_batches=placed.problem.micro_batches,
        global_batch=placed.problem.global_batch,
        step_time_s=series.step_time(series.began_s),
        throughput=series.throughput,
        predicted=PredictedStep(step_time_s=placed.step_time_s, ci95=placed.ci95),
        bubble=mean([(stage.bubble_s + stage.transfer_s) / series.usual_s for stage in stages]),
        bubble_bound=bubble_bound(len(stages), placed.problem.micro_batches),
        timeline=timeline_record(series.usual),
        baselines=baselines,
        rounds=tuple(found.rounds),
        warmup_steps=series.warmup_steps,
        steps=series.steps,
        stamp_cost=series.stamp_cost,
        speedup_over_split=split and series.throughput.median / split.throughput,
        forced=request.force and (baselines.solo_best or split) is not None,
        complete=found.complete,
        warnings=(*noted, *_warnings(request, series)),
    )


def timeline_record(timeline: Timeline) -> StepTimeline:
    """The record of a step's tasks, in the order in which they began."""
    tasks = sorted(timeline.tasks, key=lambda timed: timed.start_s)
    return StepTimeline(
        tasks=tuple(map(_task, tasks)),
        updates=tuple(StepUpdate(device=device, start_s=start, end_s=end) for device, start, end in timeline.updates),
        step_time_s=timeline.step_time_s,
    )


def _task(timed: Timed) -> StepTask:
    times = timed._asdict()
    return StepTask(**times.pop("task")._asdict(), **times)


def _blocks(placed: Placement) -> Iterator[MeasuredBlock]:
    loads = [[*zip(load.forward_s, load.backward_s, strict=True)] for load in placed.problem.loads]
    graph = placed.problem.graph
    for block, sent, *passes_s in zip(graph.blocks, graph.crossing_bytes, *loads, strict=True):
        yield MeasuredBlock(
            name=block.name,
            calls=block.calls,
            weights_bytes=block.weights_bytes,
            crossing_bytes=sent,
            compute_s=tuple(None if sum(both) == math.inf else sum(both) for both in passes_s),
        )


def _stages(series: CutSeries) -> Iterator[Stage]:
    """The stages: each part is the median fraction of the stamped steps, times a step without; the bubble is the rest.

    If steps differ much the medians may add up to more than a step: then all are scaled down by the same factor.
    """
    placed, timelines = series.placed, series.timelines
    told, peaks = series.sensors.telemetry(series.began_s), series.memory_peak_bytes
    for parts in zip(*map(parts_of, timelines), strict=True):
        device, whole_s = parts[0].device, [one.step_time_s for one in timelines]
        part_of = [
            median([getattr(one, name) / step_s for one, step_s in zip(parts, whole_s, strict=True)]) for name in _PARTS
        ]
        step_s = series.usual_s / max(1.0, sum(part_of))
        known = placed.problem.loads[device].memory_bytes < math.inf
        yield Stage(
            device=device,
            segments=tuple((one.first, one.last) for one in placed.segments if one.device == device),
            **{name: step_s * part for name, part in zip(_PARTS, part_of, strict=True)},
            bubble_s=max(0.0, series.usual_s - step_s * sum(part_of)),
            in_flight=placed.in_flight[device],
            memory_peak_bytes=peaks[device],
            memory_predicted_bytes=round(placed.peak_bytes[device]) if known else None,
            telemetry=told[device],
        )


def _warnings(request: LayersRequest, series: CutSeries) -> list[Warning_]:
    """The warnings about the figures."""
    figures = of_figures(
        request.settings.model, series.slowed, [series], steady=series.steady, stamp_cost=series.stamp_cost
    )
    return [*([warning("shares-assumed")] if request.devices[0].profile is not None else []), *figures]
