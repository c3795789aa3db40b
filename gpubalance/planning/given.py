"""Divides a total of granules among the devices so that all are done by a deadline."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from gpubalance.planning.fleet import Fleet
from gpubalance.planning.pieces import Floats, Ints

# Rounding in a sum of times; well below TIE.
ROUNDING = 1e-13


def most_in_all(fleet: Fleet, deadline_s: float, *, alone: bool) -> float:
    """The most granules that can be done by a deadline; with `alone`, the most on one device."""
    most = fleet.most(np.array([deadline_s * (1 + ROUNDING)]))[0]
    return float((most * fleet.may_be_alone).max() if alone else most @ fleet.count)


def given(fleet: Fleet, total: int, deadline_s: float, *, alone: bool) -> Floats | None:
    """The granules of each device; None if no split of the total is done by the deadline.

    They are as even as possible; but a device that is as fast with more keeps what it can do before the deadline,
    unless the rest can be done in time only otherwise. `alone` gives all to the first device of the first kind that can
    do so many.
    """
    before, by = fleet.most(np.array([deadline_s * (1 - ROUNDING), deadline_s * (1 + ROUNDING)]))
    deadline_s *= 1 + ROUNDING
    if alone:
        return _alone(fleet, total, by, deadline_s)
    kinds = fleet.kind_of
    before, by = before[kinds], by[kinds]
    if by.sum() < total:
        return None
    for low in (before, fleet.floor[kinds]):
        if low.sum() <= total:
            units = _levelled(low, by, total, kinds)
            if not fleet.falls or fleet.in_time(units, deadline_s, kinds).all():
                return units
    order = np.lexsort((kinds, -by)).tolist()
    excess = int(by.sum()) - total
    less = _lowered(excess, (_able(fleet, by[device], excess, deadline_s, kinds[device]) for device in order))
    if less is not None:
        by[order[: len(less)]] -= less
    return None if less is None else by


def _alone(fleet: Fleet, total: int, most: Floats, deadline_s: float) -> Floats | None:
    able = fleet.may_be_alone & (most >= total)
    if fleet.falls:
        able &= fleet.in_time(np.full(len(able), float(total)), deadline_s, np.arange(len(able)))
    units = np.zeros(len(fleet.kind_of))
    units[np.argmax(fleet.kind_of == np.argmax(able))] = total
    return units if able.any() else None


def _able(fleet: Fleet, units: float, excess: int, deadline_s: float, kind: int) -> NDArray[np.bool_]:
    """Whether a device that does `units` granules can also do 0, 1, … fewer by a deadline, up to `excess` fewer."""
    fewer = np.arange(units, max(units - excess, fleet.floor[kind]) - 1, -1)
    return fleet.in_time(fewer, deadline_s, np.full(len(fewer), kind))


def _levelled(low: Floats, high: Floats, total: float, kinds: Ints) -> Floats:
    """`total` granules, as even as possible: every device is brought to one level between its `low` and `high`.

    The rest goes to the first devices.
    """
    level, above = 0, int(high.max()) + 1
    while above - level > 1:
        middle = (level + above) // 2
        level, above = (middle, above) if np.clip(middle, low, high).sum() <= total else (level, middle)
    units: Floats = np.clip(float(level), low, high)
    more = np.nonzero((low <= level) & (level < high))[0]
    first = more[np.lexsort((more, kinds[more]))]
    units[first[: int(total - units.sum())]] += 1
    return units


def _lowered(by: int, able: Iterable[NDArray[np.bool_]]) -> list[int] | None:
    """How much to take from each of the first devices so that it adds up to `by`; None if no sum of them does.

    A device can give up n granules if the n-th of its `able` is true, or 0. Only as many devices are asked as are
    needed.
    """
    sums = np.zeros(by + 1)
    sums[0] = 1
    reached, asked = [sums > 0], []
    for one in able:
        if reached[-1][by]:
            break
        asked.append(one)
        reached.append(np.convolve(reached[-1], one.astype(float))[: by + 1] > 0)
    if not reached[-1][by]:
        return None
    less = []
    for before, one in zip(reversed(reached[:-1]), reversed(asked), strict=True):
        its = next(n for n in np.nonzero(one[: by + 1])[0].tolist() if before[by - n])
        by -= its
        less.append(its)
    return less[::-1]
