"""The steps of one cut: a subject that is measured in turns, as a split is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gpubalance.jobs.measure.series import Series
from gpubalance.jobs.measure.timings import Window
from gpubalance.planning.pipeline.place import Placement
from gpubalance.planning.pipeline.timeline import Timeline
from gpubalance.results.timing import Timing
from gpubalance.settings.device import Device
from gpubalance.settings.record import Record
from gpubalance.settings.shares import Shares, count_text, run_text
from gpubalance.workers.messages import Describe, Described, Measured, Pipe
from gpubalance.workers.worker import Worker


class TriedCut(Record):
    """What a cut gave when it was tried. `window` is null if it ran out of memory, on the device `ran_out`."""

    window: Window | None = None
    ran_out: int | None = None


@dataclass
class CutSeries(Series):
    """The timings of a cut; of its stamped steps there are timelines.

    `cuts` has the layers at which blocks begin, if the user named them.
    """

    placed: Placement = field(kw_only=True)
    cuts: tuple[str, ...] = ()

    @classmethod
    def of_cut(cls, placed: Placement, devices: tuple[Device, ...], cuts: tuple[str, ...]) -> CutSeries:
        """A series without timings."""
        problem = placed.problem
        split = Shares((problem.global_batch,), (problem.micro_batch,))
        return cls(split, devices=devices, placed=placed, cuts=cuts)

    @property
    def timelines(self) -> list[Timeline]:
        """The stamped steps."""
        return [one.timeline for one in self.stamped if one.timeline is not None]

    @property
    def usual(self) -> Timeline:
        """The stamped step with the middle time."""
        return sorted(self.timelines, key=lambda one: one.step_time_s)[(len(self.timelines) - 1) // 2]

    def warm_up(self, worker: Worker) -> None:
        """Trains until steps no longer get faster, unless these segments have run last in this process.

        Raises OutOfMemory, and BadInput for a loss that is no number.
        """
        key = self.placed.segments, self.placed.problem.micro_batch
        if key not in worker.warm_pipeline:
            worker.warm_pipeline.clear()
            if self.cuts:  # without them every worker finds the same blocks
                worker.ask(Describe(cuts=tuple(self.cuts)), Described)
            self.settle(worker)
            worker.warm_pipeline[key] = self.warmup_steps
        self.warmup_steps = worker.warm_pipeline[key]

    def _replies(self, worker: Worker, how: dict[str, Any]) -> Iterator[Timing | Measured]:
        placed, problem = self.placed, self.placed.problem
        sizes = {"micro_batch": problem.micro_batch, "micro_batches": problem.micro_batches}
        return worker.pipe(Pipe(segments=placed.segments, order=placed.orders, **sizes, **how))


def cut_key(placed: Placement) -> str:
    """Text that is equal for equal cuts with equal micro-batches, and as many of them in flight."""
    return f"{placed.problem.micro_batch} {[*map(tuple, placed.segments)]} {placed.in_flight}"


def cut_text(placed: Placement, devices: tuple[Device, ...]) -> str:
    """`GPU:0 blocks 0–8, GPU:1 blocks 9–17; 16 micro-batches of 32`."""
    stages = [f"{devices[one.device].label} blocks {run_text(one.first, one.last)}" for one in placed.segments]
    return f"{', '.join(stages)}; {count_text(placed.problem.micro_batches, placed.problem.micro_batch)}"
