"""The record of a model whose layers are on several devices, trained as a pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from gpubalance.planning.pipeline.problem import Pass, Task
from gpubalance.results.common import (
    Count,
    Environment,
    Interval,
    Model,
    Number,
    OfModel,
    OfSplit,
    Part,
    Peak,
    Positive,
    Ratio,
    Size,
    StepTime,
    Throughput,
    Warning_,
    check_length,
    unsound,
)
from gpubalance.results.run import SoloBest
from gpubalance.results.timing import Telemetry
from gpubalance.settings.record import Record, Shown

Seconds = Annotated[Number, Field(ge=0)]


class MeasuredBlock(Record):
    """Consecutive layer calls that stay together, named after the first.

    `crossing_bytes` is what a cut before it sends on per sample; `compute_s` is a micro-batch's
    forward and backward on each device, null where it does not fit.
    """

    name: str
    calls: Size
    weights_bytes: Count
    crossing_bytes: Annotated[
        Count, Shown("bytes per sample sent if cut before it", "")
    ]
    compute_s: tuple[Seconds | None, ...]


class Stage(Record):
    """One device's part in a step: its segments, each [first block, last block], and its times.

    forward_s + backward_s + transfer_s + update_s + bubble_s is the step time. `transfer_s` is idle
    time while a tensor is on its way; transfers beside compute cost nothing. `in_flight` is the
    most micro-batches whose activations the device holds at once. `memory_predicted_bytes` is null
    if memory is unknown.
    """

    device: Count
    segments: tuple[tuple[Count, Count], ...]
    forward_s: Annotated[Seconds, Shown(brief="forward")]
    backward_s: Annotated[Seconds, Shown(brief="backward")]
    transfer_s: Annotated[Seconds, Shown(brief="transfer")]
    update_s: Annotated[Seconds, Shown(brief="update")]
    bubble_s: Annotated[Seconds, Shown(brief="bubble")]
    in_flight: Annotated[Count, Shown("held", brief="held")]
    memory_peak_bytes: Peak
    memory_predicted_bytes: Count | None
    telemetry: Telemetry | None = None

    @property
    def busy_s(self) -> float:
        """Seconds of a step in which the device works."""
        return self.forward_s + self.backward_s + self.update_s


class StepTask(Record):
    """A micro-batch's pass through a segment, in seconds from the step's start.

    A segment is its number in the blocks' order. `sent_s` is when the last of its inputs was made,
    `ready_s` when all of them were on its device.
    """

    segment: Count
    kind: Pass
    micro_batch: Count
    device: Count
    sent_s: Seconds
    ready_s: Annotated[Seconds, Shown("there")]
    start_s: Annotated[Seconds, Shown("from")]
    end_s: Annotated[Seconds, Shown("to")]


class StepUpdate(Record):
    """A device's weight update."""

    device: Count
    start_s: Annotated[Seconds, Shown("from")]
    end_s: Annotated[Seconds, Shown("to")]


class Span(NamedTuple):
    """What a device does for some time: a pass of a micro-batch, "transfer" or "update"."""

    kind: str
    start_s: float
    end_s: float
    micro_batch: int | None = None


class StepTimeline(Record):
    """One step, task by task, in the order in which they began."""

    tasks: tuple[StepTask, ...]
    updates: tuple[StepUpdate, ...]
    step_time_s: Positive

    def orders(self, devices: int, micro_batches: int) -> list[list[Task]]:
        """Each device's tasks in the measured order, for the first so many micro-batches."""
        orders: list[list[Task]] = [[] for _ in range(devices)]
        for done in sorted(self.tasks, key=attrgetter("start_s")):
            if done.micro_batch < micro_batches:
                orders[done.device].append(
                    Task(done.segment, done.kind, done.micro_batch)
                )
        return orders

    def spans(self, device: int) -> Iterator[Span]:
        """What a device does, in order of time; between spans it is idle.

        A transfer is the time while a tensor is on its way to a device that has nothing to do.
        """
        free_s = 0.0
        for task in self.tasks:
            if task.device != device:
                continue
            waits_s = max(free_s, task.sent_s)
            there_s = min(task.ready_s, task.start_s)
            if there_s > waits_s:
                yield Span("transfer", waits_s, there_s)
            yield Span(task.kind, task.start_s, task.end_s, task.micro_batch)
            free_s = task.end_s
        for update in self.updates:
            if update.device == device:
                yield Span("update", update.start_s, update.end_s)


class PredictedStep(Record):
    """The simulated schedule's step, from the measurements of earlier rounds.

    `ci95` is where it is in 95 % of all windows, null if no cut was run before.
    """

    step_time_s: Positive
    ci95: Annotated[Interval, Shown(unit="ms")] = None


class LayersRound(Record):
    """A cut that was tried: [first block, last block, device] of each segment.

    If it ran out of memory there is no step time, and `ran_out` is the device, null if unknown.
    """

    number: Count
    segments: tuple[tuple[Count, Count, Count], ...]
    predicted_s: Annotated[Positive, Shown("predicted")]
    predicted_ci95: Annotated[Interval, Shown(unit="ms")] = None
    outcome: Literal["measured", "oom"]
    step_time_s: Positive | None
    ran_out: Count | None = None


class SplitBaseline(OfSplit):
    """The batch split over the same devices, measured briefly or predicted."""

    throughput: Positive
    measured: bool


class LayersBaselines(Record):
    """What layers are compared with; each is null with the reason why it was not possible.

    `solo_best` is the best single device with the whole model, `split` the best batch split.
    """

    solo_best: SoloBest | None = None
    solo_best_why_not: str | None = None
    split: SplitBaseline | None = None
    split_why_not: str | None = None

    @property
    def throughput(self) -> float:
        """The most samples per second of the uncut model; 0 if it can't be trained uncut."""
        uncut = [self.solo_best, self.split]
        return max((baseline.throughput for baseline in uncut if baseline), default=0.0)


class Layers(OfModel):
    """A model cut into stages, each on a device of its own, and what a step of it takes.

    `cuts` are the layers at which blocks begin, if the user named them; then there are no other
    blocks. In every step a device did its tasks of the `timeline` in the order of their starts.

    `forced` means that the model was cut though it trains uncut, whichever is faster.

    A step is `micro_batches` of `micro_batch` samples. `bubble` is the mean fraction of a step in
    which a stage is idle, waiting for transfers included; `bubble_bound` is that of equal stages
    without transfers, (S−1)/(K+S−1).
    """

    kind: Literal["layers"] = "layers"
    environment: Environment
    model: Model
    cuts: tuple[str, ...] = ()
    blocks: tuple[MeasuredBlock, ...]
    stages: tuple[Stage, ...]
    micro_batch: Size
    micro_batches: Size
    global_batch: Size
    step_time_s: StepTime
    throughput: Throughput
    predicted: PredictedStep
    bubble: Part
    bubble_bound: Annotated[Part, Shown("bubble at best")]
    timeline: StepTimeline
    baselines: LayersBaselines
    rounds: tuple[LayersRound, ...]
    warmup_steps: Annotated[Count, Shown("warm-up steps")]
    steps: Annotated[Count, Shown("measured steps")]
    stamp_cost: Part | None
    speedup_over_split: Annotated[Ratio | None, Shown("× over the batch split")] = None
    forced: bool = False
    complete: bool
    warnings: tuple[Warning_, ...]

    @model_validator(mode="after")
    def _sound(self) -> Layers:
        if self.global_batch != self.micro_batch * self.micro_batches:
            batches = f"{self.micro_batches} of {self.micro_batch}"
            raise unsound("global_batch", f"{self.global_batch}, not {batches}")
        for number, block in enumerate(self.blocks):
            check_length(
                f"blocks.{number}.compute_s", len(block.compute_s), len(self.devices)
            )
        blocks: list[int] = []
        for first, last, _ in self.segments:
            blocks += range(first, last + 1)
        if blocks != list(range(len(self.blocks))):
            raise unsound(
                "stages", "their `segments` must contain each block exactly once"
            )
        busy = {task.device for task in self.timeline.tasks}
        busy |= {update.device for update in self.timeline.updates}
        if not busy <= {stage.device for stage in self.stages}:
            raise unsound("timeline", "contains a device without a stage")
        return self

    @property
    def segments(self) -> tuple[tuple[int, int, int], ...]:
        """[first block, last block, device] of each segment, in the blocks' order."""
        segments: list[tuple[int, int, int]] = []
        for stage in self.stages:
            segments += [(first, last, stage.device) for first, last in stage.segments]
        return tuple(sorted(segments))
