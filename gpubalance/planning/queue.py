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
_DEVICES = 0.5
_OFF_A_PROBE = 0.2
_COMMANDS = 0.4
_WORTH = 2
_EQUAL = 1e-9


class Outlook(NamedTuple):
    """The seconds in which each device should be free, and do a command; None if unknown."""

    free_s: Sequence[float]
    each_s: Sequence[float | None]

    def last_s(self, left: int) -> float:
        """When the last of `left` commands ends if each goes where it ends soonest.

        That is the best for equal commands. Devices of unknown times get none; 0 without commands
        or devices.
        """
        ends = []
        for free_s, each_s in zip(self.free_s, self.each_s, strict=True):
            if each_s is not None:
                ends.append((free_s + each_s, each_s))
        if not ends:
            return 0.0
        heapq.heapify(ends)
        last_s = 0.0
        for _ in range(left):
            last_s, each_s = ends[0]
            heapq.heapreplace(ends, (last_s + each_s, each_s))
        return last_s

    def rest_s(self, left: int) -> float:
        """The same, and not before the end of what runs."""
        return max([self.last_s(left), *self.free_s])

    def starts(self, free: Iterable[int], left: int) -> int | None:
        """Which of these free devices starts the next of `left` commands; None if none should.

        It is the fastest that is not better left idle. A device of unknown time always starts one,
        and so becomes known.
        """
        if not left:
            return None
        last_s = self.last_s(left) * (1 + _EQUAL)
        useful = []
        for device in free:
            each_s = self.each_s[device] or 0.0
            if each_s <= last_s:
                useful.append((each_s, device))
        if not useful:
            return None
        return min(useful)[1]


def relative_times(
    ended_s: Sequence[Sequence[float]], rates: Sequence[float] | None = None
) -> tuple[float | None, ...]:
    """How long each device takes for the same command, in a unit of their own.

    `ended_s` has the seconds of the commands that each device has ended, `rates` the throughputs by
    a probe. None for a device without either.
    """
    believed = [0.0] * len(ended_s)  # logarithms, as are all numbers until the end
    doubt = _DEVICES**2
    if rates:
        believed = [-math.log(rate) for rate in rates]
        doubt = _OFF_A_PROBE**2
    offsets: list[float | None] = []  # of what was seen from what was believed
    squares: list[float] = []
    free = _WORTH
    for seconds, before in zip(ended_s, believed, strict=True):
        if not seconds:
            offsets.append(None)
            continue
        logs = list(map(math.log, seconds))
        median = statistics.median(logs)
        offsets.append(median - before)
        squares += [(log - median) ** 2 for log in logs]
        free += len(logs) - 1
    variance = (sum(squares) + _WORTH * _COMMANDS**2) / free
    seen = [offset for offset in offsets if offset is not None]
    common = statistics.mean(seen or [0.0])
    times: list[float | None] = []
    for seconds, before, offset in zip(ended_s, believed, offsets, strict=True):
        if offset is not None:
            drawn = (offset - common) * doubt / (doubt + variance / len(seconds))
            times.append(math.exp(before + common + drawn))
        elif rates:
            times.append(math.exp(before + common))
        else:
            times.append(None)
    return tuple(times)


def outlook(
    ended_s: Sequence[Sequence[float]],
    running_s: Sequence[float | None],
    times: Sequence[float | None],
) -> Outlook:
    """What to expect of devices that have ended commands of `ended_s` seconds.

    They have run one since `running_s`, None if free. A command yet to run takes the mean of those
    that have ended, each divided by its device's `times`. One that runs takes the mean of those
    that took longer; if none did, the more, the longer it has run.
    """
    units: list[float] = []
    for ended, time in zip(ended_s, times, strict=True):
        if time is not None:
            units += [seconds / time for seconds in ended]
    unit = statistics.mean(units or [1.0])
    each_s = [None if time is None else unit * time for time in times]
    free_s = []
    for run_s, time in zip(running_s, times, strict=True):
        if run_s is None or time is None:
            free_s.append(0.0)
        elif not units:  # in a unit of its own: as if it had just begun
            free_s.append(time)
        else:
            rests_s = [time * unit - run_s for unit in units]
            longer = [rest_s for rest_s in rests_s if rest_s > 0]
            free_s.append(statistics.mean(longer or [run_s / (1 + len(units))]))
    return Outlook(free_s, each_s)
