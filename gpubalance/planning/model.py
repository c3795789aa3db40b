"""A device's step time over the batch: a line, or the measured curve.

The line is α + β·b. The curve is for a device whose step time is no line.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from operator import itemgetter, sub
from typing import ClassVar, TypeAlias

import numpy as np

from gpubalance.numbers.stats import half_width
from gpubalance.planning.parts import StepTimes

# Above this residual the line misses the curve by more than measurement error.
LINE_WITHIN = 0.03
# A batch is slower than a larger one if by more than this part, and by more than both intervals.
_SLOWER_BY = 0.01


# A straight piece: the batch at which it begins, its seconds there, and those of a sample more.
Piece: TypeAlias = tuple[float, float, float]


@dataclass(frozen=True)
class Line:
    """alpha_s + beta_s · b seconds.

    `residual` is its largest relative deviation from a measured point.
    """

    alpha_s: float
    beta_s: float
    residual: float

    falls: ClassVar[bool] = False  # see `Curve`

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Its only piece."""
        return ((0.0, self.alpha_s, self.beta_s),)

    def step_time_s(self, batch: float) -> float:
        """Seconds that a step of `batch` samples takes."""
        return self.alpha_s + self.beta_s * batch

    def measured_s(self, batch: float) -> float:
        """The same; see `Curve`."""
        return self.step_time_s(batch)

    def up_to(self, _batch: int) -> Line:
        """The same; see `Curve`."""
        return self

    def less(self, seconds: float) -> Line:
        """The model with every step shorter by so many seconds."""
        return Line(self.alpha_s - seconds, self.beta_s, self.residual)


@dataclass(frozen=True)
class Curve:
    """Piecewise linear through points; beyond them its first and last pieces continue.

    A planner's curve never falls: it has the least time of a batch or of any larger one, so that a
    larger batch that is faster is used. If the first piece would be below 0 at no samples, a piece
    from the origin replaces it: no step takes negative time.
    """

    batches: tuple[int, ...]
    step_times_s: tuple[float, ...]

    @classmethod
    def through(cls, points: Sequence[tuple[int, float]]) -> Curve:
        """The curve through (batch, seconds) points, by batch."""
        batches, times_s = zip(*points, strict=True)
        return cls(batches, times_s)

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """Its pieces, at least one."""
        points = list(zip(self.batches, self._rising_s, strict=True))
        if len(points) == 1:
            points.insert(0, (0, self._rising_s[0]))
        else:
            (left, low_s), (right, high_s) = points[:2]
            slope_s = (high_s - low_s) / (right - left)
            if low_s - slope_s * left < 0:
                points.insert(0, (0, 0.0))
        pieces = []
        for (begin, low_s), (end, high_s) in pairwise(points):
            pieces.append((begin, low_s, (high_s - low_s) / (end - begin)))
        return tuple(pieces)

    def step_time_s(self, batch: float) -> float:
        """The least seconds of a step of so many samples or more."""
        number = bisect_left(self.pieces, batch, lo=1, key=itemgetter(0)) - 1
        begin, low_s, slope_s = self.pieces[number]
        return low_s + slope_s * (batch - begin)

    def measured_s(self, batch: float) -> float:
        """Seconds that a step of so many samples takes, though one of more may take less."""
        excess_s = np.interp(batch, self.batches, self._excess_s)
        return self.step_time_s(batch) + float(excess_s)

    @property
    def falls(self) -> bool:
        """Whether any batch was measured to take longer than a larger one."""
        return self._rising_s != self.step_times_s

    @cached_property
    def _rising_s(self) -> tuple[float, ...]:
        """Each point's seconds, or those of a larger batch if that takes less."""
        times_s = list(self.step_times_s)
        for number in reversed(range(len(times_s) - 1)):
            times_s[number] = min(times_s[number], times_s[number + 1])
        return tuple(times_s)

    @cached_property
    def _excess_s(self) -> tuple[float, ...]:
        """By how many seconds each point is slower than a larger batch."""
        return tuple(map(sub, self.step_times_s, self._rising_s))

    def up_to(self, batch: int) -> Curve:
        """The curve of a device that can't have more: no batch beyond counts as faster."""
        if not self.falls or not 0 < batch < self.batches[-1]:
            return self
        sizes = sorted({1, batch, *(size for size in self.batches if size < batch)})
        return Curve(tuple(sizes), tuple(map(self.measured_s, sizes)))

    def less(self, seconds: float) -> Curve:
        """The model with every step shorter by so many seconds."""
        return Curve(self.batches, tuple(time - seconds for time in self.step_times_s))


def fit_line(points: Sequence[tuple[int, float]]) -> Line:
    """The line with the least Σ ((α + β·b − t)/t)² through (batch, seconds) points; α, β ≥ 0.

    Errors are relative, as a planner divides by times: a millisecond matters at 20 ms and not at
    2 s. Weighted least squares with weights 1/t² (closed form). Raises ValueError for fewer than
    two batches.
    """
    if len({batch for batch, _ in points}) < 2:
        raise ValueError("a line through step times needs two batch sizes or more")
    rows = [(1 / t**2, b, t) for b, t in points]  # w, b, t
    total = sum(w for w, _, _ in rows)
    mean_b = sum(w * b for w, b, _ in rows) / total
    mean_t = sum(w * t for w, _, t in rows) / total
    spread = sum(w * (b - mean_b) ** 2 for w, b, _ in rows)
    common = sum(w * (b - mean_b) * (t - mean_t) for w, b, t in rows)
    beta = common / spread
    alpha = mean_t - beta * mean_b
    if alpha < 0:  # then the best line passes through the origin
        alpha = 0.0
        products = sum(w * b * t for w, b, t in rows)
        squares = sum(w * b * b for w, b, _ in rows)
        beta = products / squares
    elif beta < 0:  # then the best line is flat
        alpha = mean_t
        beta = 0.0
    residual = max(abs(alpha + beta * b - t) / t for b, t in points)
    return Line(alpha, beta, residual)


def slower_batches(
    points: Sequence[tuple[int, float, float]],
) -> list[tuple[int, int]]:
    """The batches that clearly take longer than a larger one, each with the fastest such one.

    Points are (batch, seconds, half of their interval as a fraction; 0 if they are to be believed).
    """
    slower = []
    for batch, time_s, own_half in points:
        faster = []
        for larger, larger_s, other_half in points:
            minimum = 1 + max(_SLOWER_BY, own_half + other_half)
            if larger > batch and time_s > larger_s * minimum:
                faster.append((larger_s, larger))
        if faster:
            slower.append((batch, min(faster)[1]))
    return slower


def measured_curve(points: Sequence[tuple[int, float, float]]) -> Curve:
    """The curve through (batch, seconds, half of their interval) points.

    One that falls within what measuring is exact to is made monotone; a batch that clearly takes
    longer than a larger one keeps its time.
    """
    kept = {batch for batch, _ in slower_batches(points)}
    times_s = {batch: time_s for batch, time_s, _ in points}
    others = [(batch, times_s[batch]) for batch in times_s if batch not in kept]
    monotone = monotone_curve(others)
    times_s.update(zip(monotone.batches, monotone.step_times_s, strict=True))
    return Curve.through(sorted(times_s.items()))


def monotone_curve(points: Sequence[tuple[int, float]]) -> Curve:
    """The nearest curve (least squares) that never falls.

    Isotonic regression by pooling adjacent violators: Barlow et al., Statistical Inference under
    Order Restrictions, 1972. Among a probe's few points a larger batch that was faster shows noise
    or another of cuDNN's algorithms, and says nothing of the sizes in between.
    """
    ordered = sorted(points)
    pools: list[tuple[float, int]] = []  # of points: their mean, and how many they are
    for _, mean in ordered:
        size = 1
        while pools and pools[-1][0] >= mean:
            earlier, count = pools.pop()
            mean = (earlier * count + mean * size) / (count + size)
            size += count
        pools.append((mean, size))
    times_s: list[float] = []
    for mean, size in pools:
        times_s += [mean] * size
    return Curve(tuple(batch for batch, _ in ordered), tuple(times_s))


# A device's fixed cost is learnt where its samples at a time change by this part, and by so many
# half-widths.
_LEAST_CHANGE = 0.05
_CLEARLY = 2.0
# The part of a device's time for the larger of two micro-batches that is at least its samples':
# what looks like less is another speed, and tells nothing.
_LEAST_BY_BATCH = 0.05


def fixed_samples(curve: Curve, size: int) -> float:
    """The samples that take as long as the fixed cost of a step of that size.

    It is by the line through that size and half of it: right beside it, a curve may be a step.
    """
    step_s = curve.step_time_s(size)
    slope_s = (step_s - curve.step_time_s(size / 2)) / (size / 2)
    slope_s = max(slope_s, _min_slope_s(step_s, size))
    return max(0.0, step_s / slope_s - size)


class FixedCosts:
    """A device takes β · (b + k·f) seconds for b samples in k micro-batches.

    f is the samples that take as long as the fixed cost of a micro-batch: what a plan knows, until
    a change of b/k clearly shows another one. Without a plan f is 0 before that, so that a split
    moves too little rather than too much. But while `is_cautious`, a further micro-batch takes as
    long as the others: so no split is tried that may be slower.
    """

    def __init__(self, planned: Sequence[float | None]) -> None:
        """`planned` has each device's f by a plan, or None."""
        self._samples = list(planned)  # f
        self.is_cautious = True

    def compute_s(self, now: StepTimes, device: int, batch: int, count: int) -> float:
        """Seconds of so many samples in so many micro-batches, by what the device takes now."""
        old_batch = now.split.batches[device]
        old_count = now.split.counts[device]
        fixed = self._samples[device]
        if fixed is not None:
            part = (batch + count * fixed) / (old_batch + old_count * fixed)
        elif count > old_count and self.is_cautious:
            part = max(batch / old_batch, count / old_count)
        else:
            part = batch / old_batch
        return part * now.compute_s[device]

    def learn(self, before: Sequence[StepTimes], steps: Sequence[StepTimes]) -> None:
        """Learns each device's f from steps before and after a change of the split."""
        old = StepTimes.median_of(before)
        now = StepTimes.median_of(steps)
        counts = zip(old.split.counts, now.split.counts, strict=True)
        for device, (old_count, count) in enumerate(counts):
            old_size = old.split.batches[device] / old_count
            size = now.split.batches[device] / count
            old_s = old.compute_s[device] / old_count
            size_s = now.compute_s[device] / count
            unsure = half_width([step.compute_s[device] for step in steps]) or 0.0
            unsure *= 1 + math.sqrt(len(steps) / len(before))
            clearly = max(_LEAST_CHANGE, _CLEARLY * unsure)
            known = self._samples[device]
            if known is not None:
                foretold_s = old_s * (size + known) / (old_size + known)
                if abs(size_s / foretold_s - 1) <= clearly:
                    continue
            if abs(size - old_size) > size * clearly:
                slope_s = (size_s - old_s) / (size - old_size)
                if slope_s >= _min_slope_s(size_s, max(size, old_size)):
                    self._samples[device] = max(0.0, size_s / slope_s - size)


def _min_slope_s(step_s: float, size: float) -> float:
    """The least seconds that one sample more can take, of a size that takes so long."""
    return _LEAST_BY_BATCH * step_s / size
