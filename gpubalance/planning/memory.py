"""Predicts from measured memory how large a batch fits, alone and in a joint run."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

_WELL_BELOW = Fraction(3, 4)  # of the batch above it
# Of the last error: an allocator's rounding does not vanish near a measured batch.
_LEAST_ERROR = Fraction(1, 4)
# What TensorFlow's allocator held more in a joint run than alone, in gradients' bytes, on two of
# the tests' fake GPUs with dense models of 72 MB: 1.8 to 2.2 summed all at once, and 0.6 to 1.2 in
# packs, more for larger ones.
_COPIES_AT_ONCE = 2
_PACKS_AT_ONCE = 2

Points = Sequence[tuple[int, int]]  # (batch, peak bytes), by batch


@dataclass(frozen=True)
class MemoryCurve:
    """Memory from the largest measured batch on, for d samples more.

    It is peak + slope · d + bend · d · (d + gap), Newton's polynomial through the largest batch and
    two smaller ones, with `gap` between the largest and the second. A downward bend is left out: if
    memory rises ever more slowly, as after a workspace's plateau, the line is above it. So the
    curve overestimates rather than underestimates.
    """

    batch: int
    peak_bytes: int
    slope: Fraction
    bend: Fraction
    gap: int

    @classmethod
    def through(cls, points: Points, memory_bytes: int) -> MemoryCurve | None:
        """The curve through some of the points; None for fewer than two, or if memory never rises.

        Fractions keep exactly linear memory exact.
        """
        chosen = _well_apart(points, memory_bytes)
        if len(chosen) < 2:
            return None
        large, high = chosen[0]
        middle, low = chosen[1]
        slope = Fraction(high - low, large - middle)
        if slope <= 0:
            return None
        bend = Fraction(0)
        if len(chosen) == 3:
            small, lowest = chosen[2]
            bend = (slope - Fraction(low - lowest, middle - small)) / (large - small)
        return cls(large, high, slope, max(bend, Fraction(0)), large - middle)

    def at(self, batch: int) -> Fraction:
        """The predicted bytes of a batch."""
        more = batch - self.batch
        needs = self.peak_bytes + self.slope * more
        if more > 0:
            needs += self.bend * more * (more + self.gap)
        return needs

    def largest_within(self, memory_bytes: int) -> int:
        """The largest batch that the curve puts within the memory; below 1 if there is none."""
        by_line = self.batch + math.floor((memory_bytes - self.peak_bytes) / self.slope)
        return _last_within(self.at, memory_bytes, self.batch, by_line)


def _well_apart(points: Points, memory_bytes: int) -> list[tuple[int, int]]:
    """Up to three points, the largest first, each the nearest well below the one before it.

    Small batches hide the slope behind workspaces, and close ones behind the allocator's rounding.
    So well below means by a quarter, or by half as many bytes as the memory has left: near the
    limit, close ones will do.
    """
    chosen = list(points[-1:])
    while chosen and len(chosen) < 3:
        left = memory_bytes - chosen[0][1]
        batch, peak = chosen[-1]
        below = [point for point in points if point[0] < batch]
        if not below:
            break
        nearest = below[0]
        for small, low in below:
            if small <= batch * _WELL_BELOW or peak - low >= left / 2 > 0:
                nearest = (small, low)
        chosen.append(nearest)
    return chosen


def _last_within(
    bytes_of: Callable[[int], Fraction], memory_bytes: int, low: int, high: int
) -> int:
    """The largest batch from `low` to `high` that fits, by a rising function; `high` if below."""
    if high <= low:
        return high
    return low + bisect.bisect_right(
        range(low + 1, high + 1), Fraction(memory_bytes), key=bytes_of
    )


@dataclass(frozen=True)
class Forecast:
    """What measured memory predicts for the batch limit, in batches.

    `best` is the largest that fits by the curve; `sure` the largest that fits even if the curve
    errs as it did at the last measured batch; `doubt` the first that fails even then.
    """

    sure: int
    best: int
    doubt: int


def forecast(points: Points, memory_bytes: int) -> Forecast | None:
    """The forecast from points in order of their batches; None if they give no curve.

    The error is how far the largest batch missed the curve of those below it. It grows with the
    cube of the distance, like the remainder of a polynomial of degree two, and never falls below a
    quarter of itself.
    """
    curve = MemoryCurve.through(points, memory_bytes)
    if curve is None:
        return None
    best = curve.largest_within(memory_bytes)
    earlier = MemoryCurve.through(points[:-1], memory_bytes)
    if earlier is None:
        return Forecast(best, best, best + 1)
    error = abs(earlier.at(curve.batch) - curve.peak_bytes)
    stride = curve.batch - earlier.batch

    def at_worst(batch: int) -> Fraction:
        times_the_error = Fraction(batch - curve.batch, stride) ** 3
        return curve.at(batch) + error * max(_LEAST_ERROR, times_the_error)

    sure = _last_within(at_worst, memory_bytes, curve.batch, best)
    doubt = curve.largest_within(memory_bytes + math.ceil(error)) + 1
    return Forecast(sure, best, doubt)


def predict_limit(points: Points, memory_bytes: int) -> int | None:
    """The largest batch that fits by the line through the two largest (batch, bytes) points.

    Smaller batches hide the slope behind workspaces. None if memory does not rise.
    """
    curve = MemoryCurve.through(sorted(points)[-2:], memory_bytes)
    return None if curve is None else curve.largest_within(memory_bytes)


def joint_bytes(gradient_bytes: int, devices: int, pack_bytes: int) -> int:
    """Bytes that a joint run takes on each device beyond what the device takes alone.

    They are 0 for one device, else the summed gradients beside the packs that are being summed. If
    all are one pack (0), that is a copy.
    """
    if devices == 1:
        return 0
    at_once_bytes = _COPIES_AT_ONCE * gradient_bytes
    if not pack_bytes:
        return at_once_bytes
    return min(at_once_bytes, gradient_bytes + _PACKS_AT_ONCE * pack_bytes)


def joint_limit(
    points: Points, fits: int, *, memory_bytes: int | None, extra_bytes: int
) -> int:
    """The largest batch, up to `fits`, that leaves `extra_bytes` of the device's memory free.

    Predicted by the curve through the measured (batch, peak bytes) points. If the memory is
    unknown, it is `fits`.
    """
    fitting = [point for point in points if point[0] <= fits]
    if memory_bytes is None or not extra_bytes or not fitting:
        return fits
    curve = MemoryCurve.through(fitting, memory_bytes)
    if curve is None:
        return fits if fitting[-1][1] + extra_bytes <= memory_bytes else 0
    return max(0, min(fits, curve.largest_within(memory_bytes - extra_bytes)))
