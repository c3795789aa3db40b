"""The steps of one cut: a subject that is measured in turns, as a split is, and what they say of
its stages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gpubalance.jobs.measure.series import Series
from gpubalance.numbers.stats import median
from gpubalance.planning.pipeline.place import Placement
from gpubalance.planning.pipeline.timeline import Timeline
from gpubalance.results.layers import MeasuredBlock, Stage, StepTimeline
from gpubalance.results.timing import Timing
from gpubalance.settings.device import Device
from gpubalance.settings.shares import Shares, count_text, run_text
from gpubalance.workers.messages import Measured, Pipe
from gpubalance.workers.worker import Worker

_PARTS = ("forward", "backward", "transfer", "update")


@dataclass
class CutSeries(Series):
    """The timings of a cut; of its stamped steps there are timelines."""

    placed: Placement = field(kw_only=True)

    @classmethod
    def of_cut(cls, placed: Placement, devices: tuple[Device, ...]) -> CutSeries:
        """A series without timings."""
        problem = placed.problem
        return cls(
            Shares((problem.global_batch,), (problem.micro_batch,)), devices=devices, placed=placed
        )

    @property
    def key(self) -> str:
        """Text that is equal for equal cuts with equal micro-batches, and as many of them in
        flight.
        """
        placed = self.placed
        return f"{placed.problem.micro_batch} {[*map(tuple, placed.segments)]} {placed.in_flight}"

    @property
    def text(self) -> str:
        """`GPU:0 blocks 0–8, GPU:1 blocks 9–17; 16 micro-batches of 32`."""
        problem, segments = self.placed.problem, self.placed.segments
        stages = [
            f"{self.devices[one.device].label} blocks {run_text(one.first, one.last)}"
            for one in segments
        ]
        return f"{', '.join(stages)}; {count_text(problem.micro_batches, problem.micro_batch)}"

    @property
    def timelines(self) -> list[Timeline]:
        """The stamped steps, the shortest first."""
        found = (one.timeline for one in self.stamped if one.timeline is not None)
        return sorted(found, key=lambda one: one.step_time_s)

    @property
    def usual(self) -> StepTimeline:
        """The stamped step with the middle time."""
        return _record(self.timelines[(len(self.timelines) - 1) // 2])

    def warm_up(self, worker: Worker) -> None:
        """Trains until steps no longer get faster, unless these segments have run last in this
        process.

        Raises OutOfMemory, and BadInput for a loss that is no number.
        """
        key = self.placed.segments, self.placed.problem.micro_batch
        if key not in worker.warm_pipeline:
            worker.warm_pipeline.clear()
            self.settle(worker)
            worker.warm_pipeline[key] = self.warmup_steps
        self.warmup_steps = worker.warm_pipeline[key]

    def _replies(self, worker: Worker, how: dict[str, Any]) -> Iterator[Timing | Measured]:
        placed, problem = self.placed, self.placed.problem
        sizes = {"micro_batch": problem.micro_batch, "micro_batches": problem.micro_batches}
        return worker.pipe(Pipe(segments=placed.segments, order=placed.orders, **sizes, **how))

    def stages(self) -> Iterator[Stage]:
        """The stages, in the blocks' order: each part is the median fraction of the stamped steps,
        times one without.

        The bubble is the rest. If steps differ much the medians may add up to more than a step:
        then all are scaled down by the same factor.
        """
        placed, steps = self.placed, [*map(_record, self.timelines)]
        told = self.sensors.telemetry(self.began_s)
        for device in dict.fromkeys(one.device for one in placed.segments):
            each = [_parts(step, device) for step in steps]
            part_of = {name: median([parts[name] for parts in each]) for name in _PARTS}
            whole = sum(part_of.values())
            step_s = self.usual_s / max(1.0, whole)
            known = placed.problem.loads[device].memory_bytes < math.inf
            yield Stage(
                device=device,
                segments=tuple(
                    (one.first, one.last) for one in placed.segments if one.device == device
                ),
                **{f"{name}_s": step_s * part for name, part in part_of.items()},
                bubble_s=max(0.0, self.usual_s - step_s * whole),
                in_flight=placed.in_flight[device],
                memory_peak_bytes=self.peaks[device],
                memory_predicted_bytes=round(placed.peak_bytes[device]) if known else None,
                telemetry=told[device],
            )

    def blocks(self) -> Iterator[MeasuredBlock]:
        """What each block takes on each device by what is known now."""
        graph, loads = self.placed.problem.graph, self.placed.problem.loads
        passes = [zip(load.forward_s, load.backward_s, strict=True) for load in loads]
        for block, sent, *passes_s in zip(graph.blocks, graph.crossing_bytes, *passes, strict=True):
            yield MeasuredBlock(
                name=block.name,
                calls=block.calls,
                weights_bytes=block.weights_bytes,
                crossing_bytes=sent,
                compute_s=tuple(None if math.inf in both else sum(both) for both in passes_s),
            )


def _record(timeline: Timeline) -> StepTimeline:
    return StepTimeline.model_validate(timeline, from_attributes=True)


def _parts(step: StepTimeline, device: int) -> dict[str, float]:
    """The fraction of a step that each kind of the device's work takes."""
    parts = dict.fromkeys(_PARTS, 0.0)
    for kind, start_s, end_s, _ in step.spans(device):
        parts[kind] += (end_s - start_s) / step.step_time_s
    return parts
