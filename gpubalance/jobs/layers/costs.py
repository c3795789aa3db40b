"""What each block of a model takes on one device, by its measured points and by the cuts that were run."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from gpubalance.jobs.layers.blocks import Blocks
from gpubalance.numbers.stats import mean, median
from gpubalance.planning.model import monotone_curve
from gpubalance.planning.pipeline.place import Placement
from gpubalance.planning.pipeline.problem import Load
from gpubalance.planning.pipeline.timeline import Pass, Timeline
from gpubalance.results.block import BlockTimed

_DOES_NOT_FIT = (math.inf, math.inf, 0.0, 0.0, 0.0, 0.0)


class DeviceCosts:
    """The blocks' points on one device, and the factors by which they differ in the pipeline."""

    def __init__(self, measured: Blocks) -> None:
        self._points: dict[int, list[BlockTimed]] = defaultdict(list)
        for point in measured.points:
            self._points[point.block].append(point)
        self._blocks = range(len(measured.graph.blocks))
        self._sizes = {point.micro_batch for point in measured.points}
        self.largest = max(self._sizes, default=1)
        self._factors = [[1.0] * len(self._blocks) for _ in range(3)]  # of forward, backward and update

    def load(self, micro_batch: int, limit_bytes: int | None) -> Load:
        """What blocks take at a micro-batch; `limit_bytes` is lowered by the most that a block takes for a moment."""
        costs = [self._cost(self._points[block], micro_batch) for block in self._blocks]
        *times_s, fixed, live, working = zip(*costs, strict=True)
        forward_s, backward_s, update_s = (
            tuple(one * factor for one, factor in zip(own, factors, strict=True))
            for own, factors in zip(times_s, self._factors, strict=True)
        )
        limit = None if limit_bytes is None else limit_bytes - max(working)
        return Load(forward_s, backward_s, update_s, fixed, live, limit)

    def _cost(self, points: Sequence[BlockTimed], micro_batch: int) -> tuple[float, ...]:
        """A block's forward, backward, update, and fixed, live and working bytes; seconds are infinite if it can't fit.

        Straight lines between the measured sizes and beyond; memory in proportion to the largest's. A block that did
        not fit at a size at which others were measured does not fit from there on.
        """
        largest = max(points, key=lambda point: point.micro_batch, default=None)
        if largest is None or any(largest.micro_batch < size <= micro_batch for size in self._sizes):
            return _DOES_NOT_FIT
        forward = monotone_curve([(point.micro_batch, median(point.forward_s)) for point in points])
        backward = monotone_curve([(point.micro_batch, median(point.backward_s)) for point in points])
        times_s = forward.step_time_s(micro_batch), backward.step_time_s(micro_batch)
        update_s = median([median(point.update_s) for point in points])
        by = micro_batch / largest.micro_batch
        by_size = (by * (largest.held_bytes or 0), by * (largest.working_bytes or 0))
        return *times_s, update_s, largest.fixed_bytes, *by_size

    def learn(self, placed: Placement, device: int, steps: Sequence[Timeline]) -> None:
        """Rescales blocks that ran here by their segment's factor in these steps, others by the mean of those."""
        own = [number for number, one in enumerate(placed.segments) if one.device == device]
        costs = placed.costs
        for kind, expected_s in enumerate((costs.forward_s, costs.backward_s)):
            took_s = [median([_mean_s(step, n, "backward" if kind else "forward") for step in steps]) for n in own]
            factors = [took / max(expected_s[n], 1e-9) for n, took in zip(own, took_s, strict=True)]
            self._scale(kind, placed, own, factors)
        updates_s = [sum(end_s - start_s for one, start_s, end_s in step.updates if one == device) for step in steps]
        expected = sum(costs.update_s[n] for n in own)
        if own and expected > 0:
            self._scale(2, placed, own, [median(updates_s) / expected] * len(own))

    def _scale(self, kind: int, placed: Placement, own: Sequence[int], factors: Sequence[float]) -> None:
        """By the factors of the segments `own`."""
        known = {
            block: factor
            for number, factor in zip(own, factors, strict=True)
            for block in self._blocks[placed.segments[number].blocks]
        }
        if known:
            others = mean([*known.values()])
            self._factors[kind] = [old * known.get(block, others) for block, old in enumerate(self._factors[kind])]


def _mean_s(step: Timeline, segment: int, kind: Pass) -> float:
    return mean([one.end_s - one.start_s for one in step.tasks if one.task[:2] == (segment, kind)])
