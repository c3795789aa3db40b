"""A device's step time over the batch: the line α + β·b, or, if it is no line, the measured curve made monotone."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

# Above this residual the line misses the curve by more than measurement error.
LINE_WITHIN = 0.03


@dataclass(frozen=True)
class Line:
    """alpha_s + beta_s · b seconds; `residual` is its largest relative deviation from a measured point."""

    alpha_s: float
    beta_s: float
    residual: float

    def step_time_s(self, batch: float) -> float:
        """Seconds that a step of `batch` samples takes."""
        return self.alpha_s + self.beta_s * batch

    def scaled(self, factor: float) -> Line:
        """The model of a device `factor` times as slow."""
        return Line(self.alpha_s * factor, self.beta_s * factor, self.residual)

    def less(self, seconds: float) -> Line:
        """The model with every step shorter by so many seconds."""
        return Line(self.alpha_s - seconds, self.beta_s, self.residual)


@dataclass(frozen=True)
class Curve:
    """Piecewise linear through measured points; beyond them its first and last pieces continue.

    If the first piece would be below 0 at no samples, a piece from the origin replaces it: no step takes negative time.
    """

    batches: tuple[int, ...]
    step_times_s: tuple[float, ...]

    @cached_property
    def knots(self) -> tuple[tuple[float, float], ...]:
        """The (batch, seconds) points that the pieces connect, at least two."""
        points = tuple(zip(self.batches, self.step_times_s, strict=True))
        (left, low), (right, high) = points[0], points[-1 if len(points) == 1 else 1]
        if len(points) == 1:
            return (0, low), *points
        return ((0, 0.0), *points) if low * right < high * left else points

    def step_time_s(self, batch: float) -> float:
        """Seconds that a step of `batch` samples takes."""
        piece = bisect_left(self.knots, batch, lo=1, hi=len(self.knots) - 1, key=itemgetter(0))
        (left, low), (right, high) = self.knots[piece - 1 : piece + 1]
        return low + (high - low) * (batch - left) / (right - left)

    def scaled(self, factor: float) -> Curve:
        """The model of a device `factor` times as slow."""
        return Curve(self.batches, tuple(time * factor for time in self.step_times_s))

    def less(self, seconds: float) -> Curve:
        """The model with every step shorter by so many seconds."""
        return Curve(self.batches, tuple(time - seconds for time in self.step_times_s))


def fit_line(points: Sequence[tuple[int, float]]) -> Line:
    """The line with the least Σ ((α + β·b − t)/t)² through (batch, seconds) points, with α and β not below 0.

    Errors are relative, as a planner divides by times: a millisecond matters at 20 ms and not at 2 s. Weighted least
    squares with weights 1/t² (closed form). Raises ValueError for fewer than two batches.
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
    """The nearest curve (least squares) that never falls: isotonic regression by pooling adjacent violators.

    Barlow et al., Statistical Inference under Order Restrictions, 1972. Among a probe's few points a larger batch that
    was faster shows noise or another of cuDNN's algorithms, and says nothing of the sizes in between.
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
