"""When a free device starts the next of many commands: the tail rule.

Devices that are not alike, and commands of unknown lengths: pulling the next command whenever a
device is free keeps all of them busy, until the last command starts on the slowest. So a free
device starts one only if all that is left would not end sooner without it, should each command take
as long as those before it did on average.

How long a device takes relative to another is known from few commands, which differ from each other
as well. Both are guarded against: the relative times are drawn to what was known before as far as
their spread leaves them in doubt, and a command that already takes longer than expected is expected
to go on in proportion.
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

# What is believed before anything has ended, as standard deviations of logarithms: how devices
# differ, how far a probe is off for other work, and how commands differ, which counts as much as
# two of them that have ended.
_DEVICES, _OFF_A_PROBE, _COMMANDS, _WORTH = 0.5, 0.2, 0.4, 2
_EQUAL = 1e-9


class Outlook(NamedTuple):
    """The seconds in which each device is expected to be free, and to do a command; None for an
    unknown time.
    """

    free_s: Sequence[float]
    each_s: Sequence[float | None]

    def last_s(self, left: int) -> float:
        """When the last of `left` commands ends if each goes where it ends soonest, which is the
        best for equal ones.

        Devices of unknown times get none; 0 without commands or devices.
        """
        ends = [
            (free_s + each_s, each_s)
            for free_s, each_s in zip(*self, strict=True)
            if each_s is not None
        ]
        heapq.heapify(ends)
        last_s = 0.0
        for _ in range(left if ends else 0):
            last_s, each_s = ends[0]
            heapq.heapreplace(ends, (last_s + each_s, each_s))
        return last_s

    def rest_s(self, left: int) -> float:
        """The same, and not before the end of what runs."""
        return max([self.last_s(left), *self.free_s])

    def starts(self, free: Iterable[int], left: int) -> int | None:
        """Which of these free devices starts the next of `left` commands: the fastest that is not
        better left idle.

        None if none should. A device of unknown time always starts one, and so becomes known.
        """
        last_s = self.last_s(left) * (1 + _EQUAL)
        worth = [
            (each_s or 0.0, device)
            for device in free
            if (each_s := self.each_s[device]) is None or each_s <= last_s
        ]
        return min(worth)[1] if worth and left else None


def relative_times(
    ended_s: Sequence[Sequence[float]], rates: Sequence[float] | None = None
) -> tuple[float | None, ...]:
    """How long each device takes for the same command, in a unit of their own.

    `ended_s` has the seconds of the commands that each device has ended, `rates` the throughputs by
    a probe. None for a device without either.
    """
    logs = [[math.log(seconds) for seconds in each] for each in ended_s]
    medians = [statistics.median(each) if each else 0.0 for each in logs]
    spread = sum(
        (one - median) ** 2 for each, median in zip(logs, medians, strict=True) for one in each
    )
    free = sum(len(each) - 1 for each in logs if each)
    variance = (spread + _WORTH * _COMMANDS**2) / (free + _WORTH)
    before = [-math.log(rate) for rate in rates] if rates else [0.0] * len(logs)
    prior = (_OFF_A_PROBE if rates else _DEVICES) ** 2
    offsets = [median - one for median, one in zip(medians, before, strict=True)]
    common = statistics.mean(
        [offset for offset, each in zip(offsets, logs, strict=True) if each] or [0.0]
    )
    drawn = [
        one
        + common
        + (offset - common) * prior / (prior + variance / max(1, len(each))) * bool(each)
        for one, offset, each in zip(before, offsets, logs, strict=True)
    ]
    return tuple(
        math.exp(one) if rates or each else None for one, each in zip(drawn, logs, strict=True)
    )


def outlook(
    ended_s: Sequence[Sequence[float]],
    running_s: Sequence[float | None],
    times: Sequence[float | None],
) -> Outlook:
    """What to expect of devices that have ended commands of `ended_s` and run one since
    `running_s`, None if free.

    A command yet to run takes the mean of those that have ended, each divided by its device's
    `times`. One that runs takes the mean of those that took longer; if none did, the more, the
    longer it has run.
    """
    units = [
        seconds / time
        for each, time in zip(ended_s, times, strict=True)
        if time
        for seconds in each
    ]
    unit = statistics.mean(units) if units else 1.0
    each_s = [time and unit * time for time in times]
    free_s = []
    for run_s, time, whole_s in zip(running_s, times, each_s, strict=True):
        longer = (
            [time * one - run_s for one in units if time * one > run_s]
            if time and run_s is not None
            else []
        )
        if run_s is None or not time:
            free_s.append(0.0)
        elif not units:  # in a unit of its own: as if it had just begun
            free_s.append(whole_s or 0.0)
        else:
            free_s.append(statistics.mean(longer) if longer else run_s / (1 + len(units)))
    return Outlook(free_s, each_s)
