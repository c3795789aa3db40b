"""What each block of a model takes on one device, by its measured points and by the cuts that were run."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gpubalance.jobs.layers.blocks import Blocks
from gpubalance.numbers.stats import mean, median
from gpubalance.planning.model import monotone_curve
from gpubalance.planning.pipeline.place import Placement
from gpubalance.planning.pipeline.problem import Load
from gpubalance.planning.pipeline.timeline import Pass, Timeline
from gpubalance.results.timing import BlockTimed

_DOES_NOT_FIT = [math.inf, math.inf, 0.0, 0.0, 0.0, 0.0]


class DeviceCosts:
    """The blocks' points on one device, and the factors by which they differ in the pipeline."""

    def __init__(self, measured: Blocks) -> None:
        self._points: list[list[BlockTimed]] = [[] for _ in measured.graph.blocks]
        for point in measured.points:
            self._points[point.block].append(point)
        self._sizes = {point.micro_batch for point in measured.points}
        self.largest = max(self._sizes, default=1)
        self._factors = np.ones((len(self._points), 3))  # of each block's forward, backward and update

    def load(self, micro_batch: int, limit_bytes: float) -> Load:
        """What blocks take at a micro-batch; `limit_bytes` is lowered by the most that a block takes for a moment."""
        costs = np.array([self._cost(points, micro_batch) for points in self._points])
        costs[:, :3] *= self._factors
        forward_s, backward_s, update_s, fixed, live, working = map(tuple, costs.T.tolist())
        return Load(forward_s, backward_s, update_s, fixed, live, limit_bytes - max(working))

    def _cost(self, points: Sequence[BlockTimed], micro_batch: int) -> list[float]:
        """A block's forward, backward, update, and fixed, live and working bytes; seconds are infinite if it can't fit.

        Straight lines between the measured sizes and beyond; memory in proportion to the largest's. A block that did
        not fit at a size at which others were measured does not fit from there on.
        """
        largest = max(points, key=lambda point: point.micro_batch, default=None)
        if largest is None or any(largest.micro_batch < size <= micro_batch for size in self._sizes):
            return _DOES_NOT_FIT
        by = micro_batch / largest.micro_batch
        forward = monotone_curve([(point.micro_batch, median(point.forward_s)) for point in points])
        backward = monotone_curve([(point.micro_batch, median(point.backward_s)) for point in points])
        return [
            forward.step_time_s(micro_batch),
            backward.step_time_s(micro_batch),
            median([median(point.update_s) for point in points]),
            largest.fixed_bytes,
            by * (largest.held_bytes or 0),
            by * (largest.working_bytes or 0),
        ]

    def learn(self, placed: Placement, device: int, steps: Sequence[Timeline]) -> None:
        """Rescales blocks that ran here by their segment's factor in these steps, others by the mean of those."""
        costs, own = placed.costs, [n for n, one in enumerate(placed.segments) if one.device == device]
        if not own:
            return
        factors = np.full_like(self._factors, np.nan)
        for number in own:
            blocks = placed.segments[number].blocks
            factors[blocks, 0] = _took_s(steps, number, "forward") / max(costs.forward_s[number], 1e-9)
            factors[blocks, 1] = _took_s(steps, number, "backward") / max(costs.backward_s[number], 1e-9)
        updates_s = [end_s - start_s for step in steps for one, start_s, end_s in step.updates if one == device]
        expected_s = sum(costs.update_s[number] for number in own)
        factors[:, 2] = median(updates_s) / expected_s if expected_s > 0 else 1.0
        self._factors *= np.where(np.isnan(factors), np.nanmean(factors, axis=0), factors)


def _took_s(steps: Sequence[Timeline], segment: int, kind: Pass) -> float:
    """The median over steps of a segment's mean pass."""
    return median(
        [mean([one.end_s - one.start_s for one in step.tasks if one.task[:2] == (segment, kind)]) for step in steps]
    )
