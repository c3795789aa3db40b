"""Simulates a pipeline's step from the times of its tasks and transfers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpubalance.planning.pipeline.segments import Link, Segment
from gpubalance.planning.pipeline.timeline import Pass, Task, Timed, Timeline


@dataclass(frozen=True)
class Costs:
    """Seconds of each segment's forward and backward of a micro-batch, each link's transfer and each device's update.

    A transfer is for one direction; a link within one device costs nothing, whatever its entry says.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    transfer_s: tuple[float, ...]
    update_s: tuple[float, ...]


class DeadlockError(ValueError):
    """Each device's next task needs one that comes later."""


def simulate(
    segments: Sequence[Segment], links: Sequence[Link], queues: Sequence[Sequence[Task]], costs: Costs
) -> Timeline:
    """The step that does each queue's tasks in order; a task begins once its device is free and its inputs are there.

    A queue holds a device's tasks. If it holds a segment's, and a device has several, the device always takes the task
    that can begin first, a backward before a forward: so the orders of such devices are found.

    A transfer begins when the task that sends it ends, beside all other work; transfers from one device to another take
    turns. Raises DeadlockError.
    """
    step = _Step(segments, links, costs)
    left = [list(reversed(queue)) for queue in queues]
    timed = []
    while any(left):
        heads = ((step.start_s(queue[-1]), queue[-1].kind, queue[-1].micro_batch, queue) for queue in left if queue)
        start_s, _, _, queue = min(heads, key=lambda head: head[:3])  # "backward" sorts before "forward"
        if start_s == math.inf:
            raise DeadlockError("each device waits for another's later task")
        timed.append(step.do(queue.pop(), start_s))
    updates = tuple((device, free_s, free_s + costs.update_s[device]) for device, free_s in step.free_s.items())
    return Timeline(tuple(timed), updates, max(end_s for _, _, end_s in updates))


def inputs_of(task: Task, links: Sequence[Link]) -> Iterator[Task]:
    """The tasks whose results it takes; a backward also takes what its own forward has kept."""
    for link in links:
        mine, other = (link.target, link.source) if task.kind == "forward" else (link.source, link.target)
        if mine == task.segment:
            yield Task(other, task.kind, task.micro_batch)
    if task.kind == "backward":
        yield Task(task.segment, "forward", task.micro_batch)


class _Step:
    """The state of one step while it is simulated."""

    def __init__(self, segments: Sequence[Segment], links: Sequence[Link], costs: Costs) -> None:
        self._device = [segment.device for segment in segments]
        self._links = links
        self._costs = costs
        self._needs: dict[tuple[int, Pass], int] = defaultdict(int)
        for number in range(len(segments)):
            self._needs[number, "backward"] = 1
        for link in links:
            self._needs[link.target, "forward"] += 1
            self._needs[link.source, "backward"] += 1
        self._come: dict[Task, int] = defaultdict(int)
        self._ready_s: dict[Task, float] = defaultdict(float)
        self._line_free_s: dict[tuple[int, int], float] = defaultdict(float)
        self.free_s = dict.fromkeys(self._device, 0.0)

    def start_s(self, task: Task) -> float:
        """When the task can begin; infinity until all its inputs have been sent."""
        if self._come[task] < self._needs[task.segment, task.kind]:
            return math.inf
        return max(self.free_s[self._device[task.segment]], self._ready_s[task])

    def do(self, task: Task, start_s: float) -> Timed:
        """Occupies the device for the task's time, and sends its results."""
        device = self._device[task.segment]
        lasts_s = self._costs.forward_s if task.kind == "forward" else self._costs.backward_s
        self.free_s[device] = end_s = start_s + lasts_s[task.segment]
        if task.kind == "forward":
            self._give(Task(task.segment, "backward", task.micro_batch), end_s)
        for number, link in enumerate(self._links):
            mine, other = (link.source, link.target) if task.kind == "forward" else (link.target, link.source)
            if mine == task.segment:
                self._send(Task(other, task.kind, task.micro_batch), device, self._costs.transfer_s[number], end_s)
        return Timed(task, device, self._ready_s[task], start_s, end_s)

    def _send(self, to: Task, device: int, seconds: float, sent_s: float) -> None:
        line = device, self._device[to.segment]
        if line[0] != line[1]:
            sent_s = self._line_free_s[line] = max(self._line_free_s[line], sent_s) + seconds
        self._give(to, sent_s)

    def _give(self, to: Task, arrived_s: float) -> None:
        self._come[to] += 1
        self._ready_s[to] = max(self._ready_s[to], arrived_s)
