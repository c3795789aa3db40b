"""The order in which each device does its forward and backward passes of the micro-batches.

A segment of depth d does d forwards, then a forward and a backward in turns, then the remaining backwards: it holds at
most d + 1 micro-batches. If the depths count the devices behind a segment, this is 1F1B (Narayanan et al., 2021,
arXiv:2104.04473).
"""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.planning.pipeline.segments import Link, Segment
from gpubalance.planning.pipeline.timeline import Task

MOST_AHEAD = 2  # so many times the devices behind it a segment may be ahead, to hide transfers


def depths_of(segments: Sequence[Segment], links: Sequence[Link]) -> tuple[int, ...]:
    """The depth of each segment by 1F1B: the devices behind it."""
    behind = [0] * len(segments)
    for link in sorted(links, key=lambda link: -link.source):
        passed = segments[link.source].device != segments[link.target].device
        behind[link.source] = max(behind[link.source], behind[link.target] + passed)
    return tuple(behind)


def tasks_of(segment: int, micro_batches: int, depth: int) -> tuple[Task, ...]:
    """One segment's passes, in order."""
    ahead = min(depth, micro_batches)
    tasks = [Task(segment, "forward", number) for number in range(ahead)]
    for number in range(micro_batches):
        if number + ahead < micro_batches:
            tasks.append(Task(segment, "forward", number + ahead))
        tasks.append(Task(segment, "backward", number))
    return tuple(tasks)


def most_held(order: Sequence[Task], live: Sequence[float]) -> tuple[float, int]:
    """The most that a device holds during these tasks: bytes, by `live` for each micro-batch; and micro-batches."""
    bytes_held = most_bytes = 0.0
    held = dict.fromkeys((task.segment for task in order), 0)
    most = 0
    for task in order:
        change = 1 if task.kind == "forward" else -1
        held[task.segment] += change
        bytes_held += change * live[task.segment]
        most, most_bytes = max(most, max(held.values())), max(most_bytes, bytes_held)
    return most_bytes, most
