"""Which batch sizes a throughput curve needs. Pure: what was measured goes in, the sizes still wanted come out."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from itertools import pairwise

from gpubalance.planning.model import LINE_WITHIN, fit_line

# A third of an octave where the curve bends, an octave where it does not.
_THIRDS = (2 ** (1 / 3), 2 ** (2 / 3))
# Where the knee is: throughput is at least this part of the best, and an octave still changes it by so much of it.
_KNEE_FROM = 0.5
_KNEE_CHANGES = 0.08
# The largest batch takes the place of an octave that is so near below it.
_AS_GOOD = 9 / 8
_ON_LINE = 0.01
_FEW = 4
_FIRST = 3


def octaves(smallest: int, largest: int, multiple: int) -> list[int]:
    """`smallest`, doubled up to `largest`, which is the last; all multiples of `multiple`.

    An octave within an eighth below the largest is left out.
    """
    sizes, size = [], max(multiple, smallest // multiple * multiple)
    last = max(multiple, largest // multiple * multiple)
    while size < last:
        sizes.append(size)
        size *= 2
    near = len(sizes) > 1 and last <= _AS_GOOD * sizes[-1]
    return [*(sizes[:-1] if near else sizes), last]


def on_line(sizes: Sequence[int]) -> list[int]:
    """Of octaves, those that a device is measured with that is on a line: three, then every second one, and the last.

    Up to half of the last, by when memory has said where that is.
    """
    smaller = [size for size in sizes if 2 * size <= sizes[-1]]
    return [*smaller[:_FIRST], *smaller[_FIRST + 1 :: 2], *(size for size in sizes[-1:] if size not in smaller)]


def wanted_precision(batch: int, largest: float) -> float:
    """How exactly a step time is wanted, as a part of it.

    Within ±1 % above half of the largest batch, as solo bests and splits are there. Below, a step time only tells a
    line from a curve, and is one of many that the line goes through: within ±3 %.
    """
    return _ON_LINE if 2 * batch > largest else LINE_WITHIN


def off_line(points: Sequence[tuple[int, float, float]]) -> set[int]:
    """The batches whose step time the line through all misses by more than it is known, or by more than 1 %.

    Points are (batch, seconds, half of their interval as a part). Fewer than four tell no line from a curve: all of
    them are off.
    """
    if len(points) < _FEW:
        return {batch for batch, _, _ in points}
    line = fit_line([(batch, time) for batch, time, _ in points])
    return {b for b, time, half in points if abs(line.step_time_s(b) / time - 1) > max(half, _ON_LINE)}


def knee_sizes(points: Sequence[tuple[int, float]], multiple: int, off: Container[int]) -> list[int]:
    """The sizes between octaves that (batch, throughput) points still want: where throughput bends to its plateau.

    That is where it is at least half of the best and an octave changes it by more than 8 % of the best, up or down.
    Such an octave is divided in thirds, if one of its ends is `off` the line through all: between others the line says
    it. Sizes that are there already are left out.
    """
    ordered = sorted(points)
    best = max((rate for _, rate in ordered), default=0.0)
    wanted: set[int] = set()
    for (low, before), (high, after) in pairwise(ordered):
        bends = max(before, after) >= _KNEE_FROM * best and abs(after - before) > _KNEE_CHANGES * best
        if bends and (low in off or high in off):
            wanted.update(_between(low, high, multiple))
    return sorted(wanted - {batch for batch, _ in ordered})


def _between(low: int, high: int, multiple: int) -> list[int]:
    """The third parts of an octave inside (low, high); none where the two are nearer than half an octave."""
    if high < 1.5 * low:
        return []
    sizes = [round(low * third / multiple) * multiple for third in _THIRDS]
    return [size for size in sizes if low < size < high]


def best_of(points: Sequence[tuple[int, float]]) -> tuple[int, float]:
    """The (batch, throughput) with the highest throughput; of equal ones the smallest batch."""
    return max(points, key=lambda point: (point[1], -point[0]))


def sensible_size(points: Sequence[tuple[int, float]], multiple: int, within: float = 0.05) -> int | None:
    """The size, between two that were measured, at which throughput should come within that part of the best.

    On the straight line between the two, over the logarithm of the batch, rounded up. None where a measured one is it.
    """
    ordered = sorted(points)
    first = ordered.index(sensible_of(ordered, within))
    if first == 0:
        return None
    (low, before), (high, after) = ordered[first - 1], ordered[first]
    part = ((1 - within) * best_of(ordered)[1] - before) / (after - before)
    size = math.ceil(low * (high / low) ** part / multiple) * multiple
    return size if low < size < high else None


def sensible_of(points: Sequence[tuple[int, float]], within: float = 0.05) -> tuple[int, float]:
    """The smallest batch from which on throughput stays within that part of the best, up to the best one."""
    ordered = sorted(points)
    best_batch, best = best_of(ordered)
    enough = [point for point in ordered if point[0] <= best_batch]
    chosen = enough[-1]
    for point in reversed(enough):
        if point[1] < (1 - within) * best:
            break
        chosen = point
    return chosen
