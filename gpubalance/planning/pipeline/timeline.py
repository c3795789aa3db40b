"""A step of a pipeline, task by task, simulated or measured, and where its time goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

Pass: TypeAlias = Literal["forward", "backward"]


class Task(NamedTuple):
    """One pass of one micro-batch through one segment."""

    segment: int
    kind: Pass
    micro_batch: int


# Each device's tasks, in the order in which it does them.
Orders: TypeAlias = Sequence[Sequence[Task]]


class Timed(NamedTuple):
    """A task on its device, in seconds from the step's start.

    `sent_s` is when the last of its inputs was made, `ready_s` when all were on its device; 0 for a task without.
    """

    task: Task
    device: int
    sent_s: float
    ready_s: float
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """One step. `updates` are (device, start, end); the step ends with its last device."""

    tasks: tuple[Timed, ...]
    updates: tuple[tuple[int, float, float], ...]
    step_time_s: float

    def lasting(self, seconds: float) -> Timeline:
        """The same step, all times in proportion, in so many seconds."""
        by = seconds / self.step_time_s
        tasks = (Timed(task, device, *(by * at_s for at_s in times)) for task, device, *times in self.tasks)
        updates = ((device, by * start_s, by * end_s) for device, start_s, end_s in self.updates)
        return Timeline(tuple(tasks), tuple(updates), seconds)

    def of(self, device: int) -> tuple[Timed, ...]:
        """A device's tasks, in the order in which it did them."""
        return tuple(sorted((timed for timed in self.tasks if timed.device == device), key=lambda timed: timed.start_s))


class StageParts(NamedTuple):
    """One device's part in a step. forward + backward + transfer + update + bubble is the step time.

    `transfer_s` is how long the device was idle while a tensor was on its way to it; a transfer beside compute costs
    nothing. `bubble_s` is its other idle time.
    """

    device: int
    forward_s: float
    backward_s: float
    transfer_s: float
    update_s: float
    bubble_s: float


def parts_of(timeline: Timeline) -> tuple[StageParts, ...]:
    """The parts of each device in use, in order of their numbers.

    A task began at s on a device that was free from f on; its last input was sent at t and arrived at r. Before it,
    min(r, s) − max(f, t) is transfer, if that is above 0.
    """
    found = []
    for device, began_s, ended_s in sorted(timeline.updates):
        free_s = transfer_s = 0.0
        sums = {"forward": 0.0, "backward": 0.0}
        for task, _, sent_s, ready_s, start_s, end_s in timeline.of(device):
            transfer_s += max(0.0, min(ready_s, start_s) - max(free_s, sent_s))
            sums[task.kind] += end_s - start_s
            free_s = end_s
        busy = [*sums.values(), transfer_s, ended_s - began_s]
        found.append(StageParts._make([device, *busy, timeline.step_time_s - sum(busy)]))
    return tuple(found)


def bubble_bound(stages: int, micro_batches: int) -> float:
    """(S−1)/(K+S−1): the idle fraction of a step with equal stages, if transfers take no time."""
    return (stages - 1) / (micro_batches + stages - 1)


def pipeline_throughput(rates: Sequence[float], micro_batches: int) -> float:
    """K/(K+S−1) · Σ rᵢ(m) samples/s, with each device's rate alone at the micro-batch m, for stages of equal time.

    Unequal stages give less: multiply by the mean over the largest of their times. A pipeline beats the batch split if
    that is above Σ rᵢ(bᵢ) · T/(T + s/k), with T a piece's compute and one sync of s for every k pieces: what a plan
    predicts.
    """
    return (1 - bubble_bound(len(rates), micro_batches)) * sum(rates)
