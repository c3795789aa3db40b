"""Chooses the batch sizes that a throughput curve needs.

Measurements come in, the sizes that are still needed go out.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from itertools import pairwise

from gpubalance.planning.model import LINE_WITHIN, fit_line

# Three sizes an octave where the curve bends, one elsewhere.
_THIRDS = (2 ** (1 / 3), 2 ** (2 / 3))
# The knee: throughput is at least this part of the best, and an octave still changes it by that.
_KNEE_FROM = 0.5
_KNEE_CHANGES = 0.08
# The largest batch replaces an octave that is this close below it.
_AS_GOOD = 9 / 8
_WIDE = 3.5  # two octaves, rounded to multiples
_ON_LINE = 0.01
_FEW = 4
# A sensible batch gives at most so much less than the best one.
_SENSIBLE = 0.05


def octaves(smallest: int, largest: int, multiple: int) -> list[int]:
    """`smallest`, doubled up to `largest`, which comes last; all are multiples of `multiple`.

    An octave within an eighth below the largest is left out.
    """
    size = max(multiple, smallest // multiple * multiple)
    last = max(multiple, largest // multiple * multiple)
    sizes = []
    while size < last:
        sizes.append(size)
        size *= 2
    if len(sizes) > 1 and last <= _AS_GOOD * sizes[-1]:
        sizes.pop()
    return [*sizes, last]


def wanted_precision(batch: int, largest: float) -> float:
    """How exactly a step time must be known, as a fraction of it.

    Within ± 1 % above half of the largest batch, where solo bests and splits lie. Below, a step
    time only tells a line from a curve, and is one of many points on the line: within ± 3 %.
    """
    return _ON_LINE if 2 * batch > largest else LINE_WITHIN


def off_line(points: Sequence[tuple[int, float, float]]) -> set[int]:
    """The batches whose step time is clearly off the line through all points.

    That is by more than its interval and by more than 1 %. Points are (batch, seconds, half of
    their interval as a fraction). Fewer than four can't tell a line from a curve: all of them count
    as off.
    """
    if len(points) < _FEW:
        return {batch for batch, _, _ in points}
    line = fit_line([(batch, time_s) for batch, time_s, _ in points])
    off = set()
    for batch, time_s, half_width in points:
        if abs(line.step_time_s(batch) / time_s - 1) > max(half_width, _ON_LINE):
            off.add(batch)
    return off


def knee_sizes(
    points: Sequence[tuple[int, float]], multiple: int, off: Container[int]
) -> list[int]:
    """The sizes between octaves that (batch, throughput) points still need, at the knee.

    There throughput bends to its plateau: that is where it is at least half of the best and an
    octave changes it by more than 8 % of the best, up or down. Such an octave is divided in thirds
    if one of its ends is `off` the line through all; otherwise the line predicts what lies between.
    Sizes that were measured already are left out.
    """
    wanted: set[int] = set()
    for low, high in _at_knee(points, off):
        wanted.update(_between(low, high, multiple))
    return sorted(wanted - {batch for batch, _ in points})


def knee_middles(
    points: Sequence[tuple[int, float]], multiple: int, off: Container[int]
) -> list[int]:
    """The sizes in the middle of gaps of two octaves or more at the knee.

    (32, 100 samples/s), (128, 200), (512, 210), none of them on the line: 64.
    """
    wanted: set[int] = set()
    for low, high in _at_knee(points, off):
        if high >= _WIDE * low:
            wanted.add(round(math.sqrt(low * high) / multiple) * multiple)
    return sorted(wanted - {batch for batch, _ in points})


def _at_knee(
    points: Sequence[tuple[int, float]], off: Container[int]
) -> Iterator[tuple[int, int]]:
    """The neighbours between which (batch, throughput) points bend to their plateau."""
    ordered = sorted(points)
    best = max((rate for _, rate in ordered), default=0.0)
    for (low, before), (high, after) in pairwise(ordered):
        is_high = max(before, after) >= _KNEE_FROM * best
        changes = abs(after - before) > _KNEE_CHANGES * best
        if is_high and changes and (low in off or high in off):
            yield low, high


def _between(low: int, high: int, multiple: int) -> list[int]:
    """The sizes that divide (low, high) in thirds of an octave; none within half an octave."""
    if high < 1.5 * low:
        return []
    sizes = [round(low * third / multiple) * multiple for third in _THIRDS]
    return [size for size in sizes if low < size < high]


def best_of(points: Sequence[tuple[int, float]]) -> tuple[int, float]:
    """The (batch, throughput) with the highest throughput; of equal ones the smallest batch."""
    return max(points, key=lambda point: (point[1], -point[0]))


def sensible_size(points: Sequence[tuple[int, float]], multiple: int) -> int | None:
    """The size between two measured ones at which throughput should come within 5 % of the best.

    It lies on the straight line between the two over the logarithm of the batch, rounded up. None
    if a measured one is it.
    """
    ordered = sorted(points)
    first = ordered.index(sensible_of(ordered))
    if first == 0:
        return None
    low, before = ordered[first - 1]
    high, after = ordered[first]
    _, best = best_of(ordered)
    part = ((1 - _SENSIBLE) * best - before) / (after - before)
    size = math.ceil(low * (high / low) ** part / multiple) * multiple
    return size if low < size < high else None


def sensible_of(points: Sequence[tuple[int, float]]) -> tuple[int, float]:
    """The smallest batch from which throughput stays within 5 % of the best, up to the best one."""
    best_batch, best = best_of(points)
    chosen = (best_batch, best)
    for batch, throughput in sorted(points, reverse=True):
        if batch > best_batch:
            continue
        if throughput < (1 - _SENSIBLE) * best:
            break
        chosen = (batch, throughput)
    return chosen
