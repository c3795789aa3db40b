"""The order in which each device does its passes of the micro-batches, and the step that it makes.

A segment of depth d does d forwards, then a forward and a backward in turns, then the remaining
backwards: it holds at most d + 1 micro-batches. If the depths count the devices behind a segment,
this is 1F1B (Narayanan et al., 2021, arXiv:2104.04473).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from gpubalance.planning.pipeline.problem import (
    Cut,
    Link,
    Orders,
    Pass,
    Segment,
    Task,
    Timed,
    Timeline,
    Updated,
)

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
    step = _SimulatedStep(cut)
    left = [list(reversed(queue)) for queue in queues]
    while any(left):
        heads = [queue for queue in left if queue]
        queue = min(heads, key=lambda queue: step.turn_of(queue[-1]))
        step.do(queue.pop())
    return step.timeline()


class _SimulatedStep:
    """A step while it is simulated: until when each device is busy, and what has come to tasks."""

    def __init__(self, cut: Cut) -> None:
        self._cut = cut
        self._devices = [segment.device for segment in cut.segments]
        self._lasts_s = {
            "forward": cut.costs.forward_s,
            "backward": cut.costs.backward_s,
        }
        self._gives = _gives(cut)
        # How many results each pass of a segment needs, and how many have come for each task.
        self._needs = Counter[tuple[int, Pass]]()
        for results in self._gives.values():
            self._needs.update((number, kind) for number, kind, _ in results)
        self._come = Counter[Task]()
        self._sent_s = defaultdict[Task, float](float)
        self._ready_s = defaultdict[Task, float](float)
        self._free_s = dict.fromkeys(self._devices, 0.0)
        # Until then it is in use
        self._line_s = defaultdict[tuple[int, int], float](float)
        self._timed: list[Timed] = []

    def turn_of(self, task: Task) -> tuple[float, Pass, int]:
        """A sort key: what can begin first, of equals a backward, as that sorts first."""
        return self._begins_s(task), task.kind, task.micro_batch

    def _begins_s(self, task: Task) -> float:
        """When it can begin, infinite as long as one of its inputs is not made."""
        if self._come[task] < self._needs[task[:2]]:
            return math.inf
        return max(self._free_s[self._devices[task.segment]], self._ready_s[task])

    def do(self, task: Task) -> None:
        """Does a task as soon as that can be. Raises DeadlockError if it never can."""
        start_s = self._begins_s(task)
        if start_s == math.inf:
            raise DeadlockError(
                "each device waits for a task that another device does only later"
            )
        device = self._devices[task.segment]
        end_s = start_s + self._lasts_s[task.kind][task.segment]
        self._free_s[device] = end_s
        sent_s = self._sent_s[task]
        self._timed.append(
            Timed(*task, device, sent_s, self._ready_s[task], start_s, end_s)
        )
        self._send(task, end_s)

    def _send(self, task: Task, end_s: float) -> None:
        """Sends a task's result to those that take it."""
        device = self._devices[task.segment]
        for number, kind, seconds in self._gives[task[:2]]:
            receiver = Task(number, kind, task.micro_batch)
            arrives_s = end_s
            if device != self._devices[number]:
                line = (device, self._devices[number])
                arrives_s = max(self._line_s[line], end_s) + seconds
                self._line_s[line] = arrives_s
            self._come[receiver] += 1
            self._sent_s[receiver] = max(self._sent_s[receiver], end_s)
            self._ready_s[receiver] = max(self._ready_s[receiver], arrives_s)

    def timeline(self) -> Timeline:
        """The tasks that were done, and the devices' updates after them."""
        update_s = defaultdict[int, float](float)
        for device, seconds in zip(
            self._devices, self._cut.costs.update_s, strict=True
        ):
            update_s[device] += seconds
        updates = []
        for device, at_s in self._free_s.items():
            updates.append(Updated(device, at_s, at_s + update_s[device]))
        return Timeline(tuple(self._timed), tuple(updates))


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
