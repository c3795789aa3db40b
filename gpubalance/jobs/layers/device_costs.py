"""What blocks take on one device: as measured alone, corrected by the cuts that were run."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gpubalance.numbers.stats import mean, median
from gpubalance.planning.model import monotone_curve
from gpubalance.planning.pipeline.place import Placement
from gpubalance.planning.pipeline.problem import BlockLoad
from gpubalance.planning.pipeline.timeline import Pass, Timeline
from gpubalance.results.timing import BlockTimed

_DOES_NOT_FIT = [math.inf, math.inf, 0.0, 0.0, 0.0, 0.0]
_LEAST_S = 1e-9


class DeviceCosts:
    """The blocks' points on one device, and the factors by which they differ in the pipeline."""

    def __init__(self, points: Sequence[BlockTimed], count: int) -> None:
        self._points: list[list[BlockTimed]] = [[] for _ in range(count)]  # by block
        for point in points:
            self._points[point.block].append(point)
        self._sizes = {point.micro_batch for point in points}
        self.largest = max(self._sizes, default=1)
        # Of each block's forward, backward and update
        self._factors = np.ones((count, 3))

    def load(self, micro_batch: int, limit_bytes: float) -> BlockLoad:
        """What blocks take at a micro-batch.

        `limit_bytes` is lowered by the most that a block takes for a moment.
        """
        costs = np.array([self._cost(points, micro_batch) for points in self._points])
        costs[:, :3] *= self._factors
        forward_s, backward_s, update_s, fixed, live, working = map(
            tuple, costs.T.tolist()
        )
        return BlockLoad(
            forward_s, backward_s, update_s, fixed, live, limit_bytes - max(working)
        )

    def _cost(self, points: Sequence[BlockTimed], micro_batch: int) -> list[float]:
        """A block's forward, backward, update, and fixed, live and working bytes.

        Straight lines between the measured sizes and beyond; memory in proportion to the largest's.
        A block that did not fit at a size at which others were measured does not fit from there on:
        then its seconds are infinite.
        """
        if not points:
            return _DOES_NOT_FIT
        largest = max(points, key=lambda point: point.micro_batch)
        if any(largest.micro_batch < size <= micro_batch for size in self._sizes):
            return _DOES_NOT_FIT
        times = micro_batch / largest.micro_batch
        forward = monotone_curve(
            [(point.micro_batch, median(point.forward_s)) for point in points]
        )
        backward = monotone_curve(
            [(point.micro_batch, median(point.backward_s)) for point in points]
        )
        return [
            forward.step_time_s(micro_batch),
            backward.step_time_s(micro_batch),
            median([median(point.update_s) for point in points]),
            largest.fixed_bytes,
            times * (largest.held_bytes or 0),
            times * (largest.working_bytes or 0),
        ]

    def learn(self, placed: Placement, device: int, steps: Sequence[Timeline]) -> None:
        """Rescales blocks that ran here by their segment's factor in these steps.

        Others are rescaled by the mean of those factors.
        """
        costs = placed.costs
        factors = np.full_like(self._factors, np.nan)
        expected_s = 0.0  # of the update
        for number, segment in enumerate(placed.segments):
            if segment.device == device:
                forward_s = max(costs.forward_s[number], _LEAST_S)
                backward_s = max(costs.backward_s[number], _LEAST_S)
                factors[segment.blocks, 0] = (
                    _took_s(steps, number, "forward") / forward_s
                )
                factors[segment.blocks, 1] = (
                    _took_s(steps, number, "backward") / backward_s
                )
                expected_s += costs.update_s[number]
        if np.isnan(factors).all():
            return  # nothing ran here
        updates_s = []
        for step in steps:
            for update in step.updates:
                if update.device == device:
                    updates_s.append(update.end_s - update.start_s)
        factors[:, 2] = median(updates_s) / expected_s if expected_s > 0 else 1.0
        self._factors *= np.where(
            np.isnan(factors), np.nanmean(factors, axis=0), factors
        )


def _took_s(steps: Sequence[Timeline], segment: int, kind: Pass) -> float:
    """The median over steps of a segment's mean pass."""
    means_s = []
    for step in steps:
        passes = [
            task for task in step.tasks if task.segment == segment and task.kind == kind
        ]
        means_s.append(mean([task.end_s - task.start_s for task in passes]))
    return median(means_s)
