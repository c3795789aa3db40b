"""A device's step time over the batch: the line α + β·b, or, if it is no line, the measured curve
made monotone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import TypeAlias

# Above this residual the line misses the curve by more than measurement error.
LINE_WITHIN = 0.03


# A straight piece of a step time: the batch at which it begins, its seconds there, and those of a
# sample more.
Piece: TypeAlias = tuple[float, float, float]


@dataclass(frozen=True)
class Line:
    """alpha_s + beta_s · b seconds; `residual` is its largest relative deviation from a measured
    point.
    """

    alpha_s: float
    beta_s: float
    residual: float

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Its only piece."""
        return ((0.0, self.alpha_s, self.beta_s),)

    def step_time_s(self, batch: float) -> float:
        """Seconds that a step of `batch` samples takes."""
        return self.alpha_s + self.beta_s * batch

    def less(self, seconds: float) -> Line:
        """The model with every step shorter by so many seconds."""
        return Line(self.alpha_s - seconds, self.beta_s, self.residual)


@dataclass(frozen=True)
class Curve:
    """Piecewise linear through points; beyond them its first and last pieces continue.

    It never falls: no batch takes longer than a larger one. If the first piece would be below 0 at
    no samples, a piece from the origin replaces it: no step takes negative time.
    """

    batches: tuple[int, ...]
    step_times_s: tuple[float, ...]

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """Its pieces, at least one."""
        lowered = reversed([*accumulate(reversed(self.step_times_s), min)])
        points = [
            (float(batch), time_s) for batch, time_s in zip(self.batches, lowered, strict=True)
        ]
        (left, low), (right, high) = points[0], points[-1 if len(points) == 1 else 1]
        if len(points) == 1 or low * right < high * left:
            points.insert(0, (0.0, low if len(points) == 1 else 0.0))
        return tuple((a, low, (high - low) / (b - a)) for (a, low), (b, high) in pairwise(points))

    def step_time_s(self, batch: float) -> float:
        """Seconds that a step of `batch` samples takes."""
        begin, low, slope = self.pieces[
            bisect_left(self.pieces, batch, lo=1, key=itemgetter(0)) - 1
        ]
        return low + slope * (batch - begin)

    def less(self, seconds: float) -> Curve:
        """The model with every step shorter by so many seconds."""
        return Curve(self.batches, tuple(time - seconds for time in self.step_times_s))


def fit_line(points: Sequence[tuple[int, float]]) -> Line:
    """The line with the least Σ ((α + β·b − t)/t)² through (batch, seconds) points, with α and β
    not below 0.

    Errors are relative, as a planner divides by times: a millisecond matters at 20 ms and not at 2
    s. Weighted least squares with weights 1/t² (closed form). Raises ValueError for fewer than two
    batches.
    """
    if len({batch for batch, _ in points}) < 2:
        raise ValueError("a line needs points at two batches or more")
    weights = [1 / t**2 for _, t in points]
    total = sum(weights)
    mean_b = sum(w * b for w, (b, _) in zip(weights, points, strict=True)) / total
    mean_t = sum(w * t for w, (_, t) in zip(weights, points, strict=True)) / total
    spread = sum(w * (b - mean_b) ** 2 for w, (b, _) in zip(weights, points, strict=True))
    common = sum(w * (b - mean_b) * (t - mean_t) for w, (b, t) in zip(weights, points, strict=True))
    beta = common / spread
    alpha = mean_t - beta * mean_b
    if alpha < 0:  # then the best line passes through the origin
        alpha = 0.0
        beta = sum(w * b * t for w, (b, t) in zip(weights, points, strict=True)) / sum(
            w * b * b for w, (b, _) in zip(weights, points, strict=True)
        )
    elif beta < 0:  # then the best line is flat
        alpha, beta = mean_t, 0.0
    return Line(alpha, beta, max(abs(alpha + beta * b - t) / t for b, t in points))


def monotone_curve(points: Sequence[tuple[int, float]]) -> Curve:
    """The nearest curve (least squares) that never falls: isotonic regression by pooling adjacent
    violators.

    Barlow et al., Statistical Inference under Order Restrictions, 1972. Among a probe's few points
    a larger batch that was faster shows noise or another of cuDNN's algorithms, and says nothing of
    the sizes in between.
    """
    ordered = sorted(points)
    pools: list[list[float]] = []  # [mean, size]
    for _, time in ordered:
        pools.append([time, 1])
        while len(pools) > 1 and pools[-2][0] >= pools[-1][0]:
            mean, size = pools.pop()
            before = pools[-1]
            before[0] = (before[0] * before[1] + mean * size) / (before[1] + size)
            before[1] += size
    times = [mean for mean, size in pools for _ in range(int(size))]
    return Curve(tuple(batch for batch, _ in ordered), tuple(times))
