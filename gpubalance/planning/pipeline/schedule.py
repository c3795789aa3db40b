"""The order in which each device does its passes of the micro-batches, and the step that it makes.

A segment of depth d does d forwards, then a forward and a backward in turns, then the remaining
backwards: it holds at most d + 1 micro-batches. If the depths count the devices behind a segment,
this is 1F1B (Narayanan et al., 2021, arXiv:2104.04473).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from gpubalance.planning.pipeline.problem import Cut, Link, Segment
from gpubalance.planning.pipeline.timeline import Orders, Pass, Task, Timed, Timeline, Updated

# So many times the devices behind it a segment may be ahead, to hide transfers.
MOST_AHEAD = 2


class DeadlockError(ValueError):
    """Each device's next task needs one that comes later."""


def depths_of(segments: Sequence[Segment], links: Sequence[Link]) -> tuple[int, ...]:
    """The depth of each segment by 1F1B: the devices behind it."""
    behind = [0] * len(segments)
    for source, target, _ in sorted(links, reverse=True):
        passed = segments[source].device != segments[target].device
        behind[source] = max(behind[source], behind[target] + passed)
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


def inputs_of(task: Task, links: Sequence[Link]) -> Iterator[Task]:
    """The tasks whose results it takes; a backward also takes what its own forward has kept."""
    for source, target, _ in links:
        mine, other = (target, source) if task.kind == "forward" else (source, target)
        if mine == task.segment:
            yield task._replace(segment=other)
    if task.kind == "backward":
        yield task._replace(kind="forward")


def simulate(cut: Cut, queues: Orders) -> Timeline:
    """The step that does each queue's tasks in order.

    A task begins once its device is free and its inputs are there. A queue holds a device's tasks.
    If it holds a segment's, and a device has several, the device always takes the task that can
    begin first, a backward before a forward: so the orders of such devices are found.

    A transfer begins when the task that sends it ends, beside all other work; transfers from one
    device to another take turns. Raises DeadlockError.
    """
    devices = [segment.device for segment in cut.segments]
    lasts_s = {"forward": cut.costs.forward_s, "backward": cut.costs.backward_s}
    free_s = dict.fromkeys(devices, 0.0)
    gives = _gives(cut)
    needs = Counter[tuple[int, Pass]]()
    for results in gives.values():
        needs.update((number, kind) for number, kind, _ in results)
    come = Counter[Task]()
    sent_s = defaultdict[Task, float](float)
    ready_s = defaultdict[Task, float](float)
    line_s = defaultdict[tuple[int, int], float](float)
    left = [list(reversed(queue)) for queue in queues]
    timed = []

    def begins_s(task: Task) -> float:
        if come[task] < needs[task[:2]]:
            return math.inf
        return max(free_s[devices[task.segment]], ready_s[task])

    while any(left):
        heads = [queue for queue in left if queue]
        # "backward" sorts before "forward".
        queue = min(heads, key=lambda queue: (begins_s(queue[-1]), *queue[-1][1:]))
        task = queue.pop()
        start_s = begins_s(task)
        if start_s == math.inf:
            raise DeadlockError("each device waits for another's later task")
        device = devices[task.segment]
        free_s[device] = end_s = start_s + lasts_s[task.kind][task.segment]
        timed.append(Timed(*task, device, sent_s[task], ready_s[task], start_s, end_s))
        for number, kind, seconds in gives[task[:2]]:
            receiver = Task(number, kind, task.micro_batch)
            line = (device, devices[number])
            arrives_s = end_s
            if device != devices[number]:
                arrives_s = line_s[line] = max(line_s[line], end_s) + seconds
            come[receiver] += 1
            sent_s[receiver] = max(sent_s[receiver], end_s)
            ready_s[receiver] = max(ready_s[receiver], arrives_s)
    update_s = defaultdict[int, float](float)
    for device, seconds in zip(devices, cut.costs.update_s, strict=True):
        update_s[device] += seconds
    updates = []
    for device, at_s in free_s.items():
        updates.append(Updated(device, at_s, at_s + update_s[device]))
    return Timeline(tuple(timed), tuple(updates))


def _gives(cut: Cut) -> dict[tuple[int, Pass], list[tuple[int, Pass, float]]]:
    """The passes that take the results of a segment's pass, with the seconds of the transfer."""
    gives: dict[tuple[int, Pass], list[tuple[int, Pass, float]]] = defaultdict(list)
    for number in range(len(cut.segments)):
        gives[number, "forward"].append((number, "backward", 0.0))
    for source, target, size in cut.links:
        seconds = cut.problem.transfer_s(size)
        gives[source, "forward"].append((target, "forward", seconds))
        gives[target, "backward"].append((source, "backward", seconds))
    return gives
