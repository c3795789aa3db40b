"""A cut as it is measured: what its windows say of its stages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpubalance.jobs.measure.figures import Windows, began_s, peaks, stamped_in, usual_s
from gpubalance.jobs.measure.measurer import Measurer
from gpubalance.jobs.measure.window import Workload
from gpubalance.numbers.stats import median
from gpubalance.planning.pipeline.place import Placement
from gpubalance.planning.pipeline.timeline import Timeline
from gpubalance.results.layers import MeasuredBlock, Stage, StepTimeline
from gpubalance.settings.batch_split import BatchSplit, count_text, run_text
from gpubalance.settings.device import Device
from gpubalance.workers.messages import Pipe

_PARTS = ("forward", "backward", "transfer", "update")


@dataclass(frozen=True)
class MeasuredCut:
    """A cut and the measurer that takes, or has taken, its windows."""

    placed: Placement
    workload: Workload
    measurer: Measurer

    @property
    def windows(self) -> Windows:
        """Those that were taken so far."""
        return self.measurer.windows[self.workload]

    @property
    def windows_resumed(self) -> int:
        """How many of them an interrupted command left."""
        return self.measurer.resumed[(self.workload,)]


def workload_of(placed: Placement, devices: tuple[Device, ...]) -> Workload:
    """What is measured of a cut. Its name is equal for equal cuts that run alike.

    They have equal micro-batches, and as many of them in flight.
    """
    problem = placed.problem
    name = f"{problem.micro_batch} {[*map(tuple, placed.segments)]} {placed.in_flight}"
    cut = Pipe(
        segments=placed.segments,
        order=placed.orders,
        micro_batch=problem.micro_batch,
        micro_batches=problem.micro_batches,
    )
    split = BatchSplit((problem.global_batch,), (problem.micro_batch,))
    return Workload(split, devices, name, shown=False, cut=cut)


def cut_text(placed: Placement, devices: Sequence[Device]) -> str:
    """`GPU:0 blocks 0–8, GPU:1 blocks 9–17; 16 micro-batches of 32`."""
    stages = []
    for segment in placed.segments:
        blocks = run_text(segment.first, segment.last)
        stages.append(f"{devices[segment.device].label} blocks {blocks}")
    problem = placed.problem
    return (
        f"{', '.join(stages)}; {count_text(problem.micro_batches, problem.micro_batch)}"
    )


def timelines(windows: Windows) -> list[Timeline]:
    """The stamped steps, the shortest first."""
    steps = [step.timeline for step in stamped_in(windows) if step.timeline is not None]
    return sorted(steps, key=lambda step: step.step_time_s)


def usual_timeline(windows: Windows) -> StepTimeline:
    """The stamped step with the middle time."""
    steps = timelines(windows)
    return _record(steps[(len(steps) - 1) // 2])


def stages(cut: MeasuredCut) -> Iterator[Stage]:
    """The stages, in the blocks' order.

    Each part is the median fraction of the stamped steps, times a step without stamps; the bubble
    is the rest. If steps differ much the medians may add up to more than a step: then all are
    scaled down by the same factor.
    """
    placed = cut.placed
    windows = cut.windows
    steps = [_record(step) for step in timelines(windows)]
    step_time_s = usual_s(windows)
    peak_bytes = peaks(windows)
    telemetry = cut.measurer.sensors(cut.workload).telemetry(began_s(windows))
    for device in dict.fromkeys(segment.device for segment in placed.segments):
        fractions = _median_parts(steps, device)
        whole = sum(fractions.values())
        scale_s = step_time_s / max(1.0, whole)
        segments = [segment for segment in placed.segments if segment.device == device]
        predicted_bytes = None
        if placed.problem.loads[device].memory_bytes < math.inf:
            predicted_bytes = round(placed.peak_bytes[device])
        yield Stage(
            device=device,
            segments=tuple((segment.first, segment.last) for segment in segments),
            **{f"{name}_s": scale_s * part for name, part in fractions.items()},
            bubble_s=max(0.0, step_time_s - scale_s * whole),
            in_flight=placed.in_flight[device],
            memory_peak_bytes=peak_bytes[device],
            memory_predicted_bytes=predicted_bytes,
            telemetry=telemetry[device],
        )


def blocks(placed: Placement) -> Iterator[MeasuredBlock]:
    """What each block takes on each device by what is known now."""
    graph = placed.problem.graph
    loads = placed.problem.loads
    crossing_bytes = graph.crossing_bytes
    for number, block in enumerate(graph.blocks):
        compute_s: list[float | None] = []
        for load in loads:
            passes_s = load.forward_s[number] + load.backward_s[number]
            compute_s.append(None if math.isinf(passes_s) else passes_s)
        yield MeasuredBlock(
            name=block.name,
            calls=block.calls,
            weights_bytes=block.weights_bytes,
            crossing_bytes=crossing_bytes[number],
            compute_s=tuple(compute_s),
        )


def _record(timeline: Timeline) -> StepTimeline:
    return StepTimeline.model_validate(timeline, from_attributes=True)


def _median_parts(steps: Sequence[StepTimeline], device: int) -> dict[str, float]:
    """The median fraction of a step that each kind of the device's work takes."""
    by_step = [_parts(step, device) for step in steps]
    medians = {}
    for name in _PARTS:
        medians[name] = median([parts[name] for parts in by_step])
    return medians


def _parts(step: StepTimeline, device: int) -> dict[str, float]:
    """The fraction of a step that each kind of the device's work takes."""
    parts = dict.fromkeys(_PARTS, 0.0)
    for kind, start_s, end_s, _ in step.spans(device):
        parts[kind] += (end_s - start_s) / step.step_time_s
    return parts
