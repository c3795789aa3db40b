"""Simulates queues of commands by the tail rule, by pulling, and in the best of all ways.

Brute force finds the best way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from random import Random

import numpy as np

from gpubalance.planning.queue import outlook, relative_times

_LOOKS_EVERY = 0.25


@dataclass(frozen=True)
class Drawn:
    """Commands of some seconds on a device of speed 1, in their order, and the devices' speeds.

    `rates` are what a probe said of the devices.
    """

    commands_s: tuple[float, ...]
    speeds: tuple[float, ...]
    rates: tuple[float, ...] | None = None


def drawn(
    random: Random,
    *,
    counts: tuple[int, int],
    speeds: Sequence[float],
    spread: float,
    probed: bool,
) -> Drawn:
    """A queue whose commands' logarithms have the standard deviation `spread`.

    A probe is off by a tenth.
    """
    count = random.randint(*counts)
    commands_s = tuple(random.lognormvariate(0.0, spread) for _ in range(count))
    rates = tuple(one * random.lognormvariate(0.0, 0.1) for one in speeds)
    return Drawn(commands_s, tuple(speeds), rates if probed else None)


def makespan_s(queue: Drawn, *, pull: bool = False) -> float:
    """The seconds from the first start to the last end.

    With `pull`, each free device takes the next command at once.
    """
    devices = range(len(queue.speeds))
    ended: list[list[float]] = [[] for _ in devices]
    running: dict[int, tuple[float, float]] = {}
    waiting = list(queue.commands_s)
    now_s = 0.0
    while waiting or running:
        while waiting and len(running) < len(devices):
            free = [device for device in devices if device not in running]
            since_s: list[float | None] = [None for _ in devices]
            for device, (began_s, _) in running.items():
                since_s[device] = now_s - began_s
            seen = outlook(ended, since_s, relative_times(ended, queue.rates))
            starts = free[0] if pull else seen.starts(free, len(waiting))
            if starts is None:
                break
            running[starts] = now_s, now_s + waiting.pop(0) / queue.speeds[starts]
        soonest_s = min(end_s for _, end_s in running.values())
        if waiting and len(running) < len(devices):
            now_s = min(soonest_s, now_s + _LOOKS_EVERY)
        else:
            now_s = soonest_s
        for device, (began_s, end_s) in list(running.items()):
            if end_s <= now_s:
                del running[device]
                ended[device].append(end_s - began_s)
    return now_s


def best_s(queue: Drawn) -> float:
    """The shortest makespan of all ways to divide these commands, known beforehand."""
    commands_s = np.array(queue.commands_s)
    ways = np.array(list(product(range(len(queue.speeds)), repeat=len(commands_s))))
    loads = []
    for device, speed in enumerate(queue.speeds):
        loads.append(((ways == device) * commands_s).sum(axis=1) / speed)
    return float(np.max(loads, axis=0).min())
