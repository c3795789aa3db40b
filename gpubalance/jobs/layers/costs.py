"""What each block of a model takes on one device, by its measured points and by the cuts that were run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpubalance.jobs.layers.kept import BlockPoint, Blocks
from gpubalance.numbers.stats import mean, median
from gpubalance.planning.model import monotone_curve
from gpubalance.planning.pipeline.problem import Load
from gpubalance.planning.pipeline.segments import Segment
from gpubalance.planning.pipeline.timeline import Timeline


@dataclass(frozen=True)
class _Cost:
    """What a block takes on a device at some micro-batch; infinite seconds if the device does not hold it."""

    forward_s: float = math.inf
    backward_s: float = math.inf
    update_s: float = 0.0
    fixed_bytes: float = 0.0
    live_bytes: float = 0.0
    working_bytes: float = 0.0


class DeviceCosts:
    """The blocks' points on one device, and the factors by which they differ in the pipeline."""

    def __init__(self, blocks: int, measured: Blocks) -> None:
        self._points: list[list[BlockPoint]] = [[] for _ in range(blocks)]
        for point in measured.points:
            self._points[point.block].append(point)
        self._sizes = {point.micro_batch for point in measured.points}
        self.largest = max(self._sizes, default=1)
        self._factors = {kind: [1.0] * blocks for kind in ("forward", "backward", "update")}

    def load(self, micro_batch: int, limit_bytes: int | None) -> Load:
        """What blocks take at a micro-batch; `limit_bytes` is lowered by the most that a block takes for a moment."""
        costs = [self._cost(points, micro_batch) for points in self._points]
        factors = self._factors
        limit = None if limit_bytes is None else limit_bytes - max(cost.working_bytes for cost in costs)
        return Load(
            tuple(cost.forward_s * factor for cost, factor in zip(costs, factors["forward"], strict=True)),
            tuple(cost.backward_s * factor for cost, factor in zip(costs, factors["backward"], strict=True)),
            tuple(cost.update_s * factor for cost, factor in zip(costs, factors["update"], strict=True)),
            tuple(cost.fixed_bytes for cost in costs),
            tuple(cost.live_bytes for cost in costs),
            limit,
        )

    def _cost(self, points: Sequence[BlockPoint], micro_batch: int) -> _Cost:
        """A block's cost: straight lines between the measured sizes and beyond; memory in proportion to the largest's.

        A block that did not fit at a size at which others were measured does not fit from there on.
        """
        largest = max(points, key=lambda point: point.micro_batch, default=None)
        if largest is None or any(largest.micro_batch < size <= micro_batch for size in self._sizes):
            return _Cost()
        forward = monotone_curve([(point.micro_batch, point.forward_s) for point in points])
        backward = monotone_curve([(point.micro_batch, point.backward_s) for point in points])
        return _Cost(
            forward.step_time_s(micro_batch),
            backward.step_time_s(micro_batch),
            median([point.update_s for point in points]),
            largest.fixed_bytes,
            (largest.held_bytes or 0) * micro_batch / largest.micro_batch,
            (largest.working_bytes or 0) * micro_batch / largest.micro_batch,
        )

    def learn(self, segments: dict[int, Segment], load: Load, device: int, steps: Sequence[Timeline]) -> None:
        """Rescales blocks that ran here, in `segments` by number, by their segment's factor, others by the mean."""
        for kind, expected_s in (("forward", load.forward_s), ("backward", load.backward_s)):
            factors = {}
            for number, segment in segments.items():
                took_s = median([_mean_s(step, number, kind) for step in steps])
                factor = took_s / max(sum(expected_s[segment.blocks]), 1e-9)
                factors.update(dict.fromkeys(segment.numbers, factor))
            self._scale(kind, factors)
        updates_s = [[end_s - start_s for one, start_s, end_s in step.updates if one == device] for step in steps]
        took_s = median(list(map(sum, updates_s)))
        expected = sum(sum(load.update_s[segment.blocks]) for segment in segments.values())
        if expected > 0:
            updated = [block for segment in segments.values() for block in segment.numbers]
            self._scale("update", dict.fromkeys(updated, took_s / expected))

    def _scale(self, kind: str, factors: dict[int, float]) -> None:
        others = mean(list(factors.values()))
        self._factors[kind] = [old * factors.get(block, others) for block, old in enumerate(self._factors[kind])]


def _mean_s(step: Timeline, segment: int, kind: str) -> float:
    tasks = [one for one in step.tasks if (one.task.segment, one.task.kind) == (segment, kind)]
    return mean([one.end_s - one.start_s for one in tasks])
