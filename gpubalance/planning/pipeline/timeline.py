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

    `sent_s` is when the last of its inputs was made, `ready_s` when all were on its device; 0 for a
    task without inputs.
    """

    segment: int
    kind: Pass
    micro_batch: int
    device: int
    sent_s: float
    ready_s: float
    start_s: float
    end_s: float

    @property
    def task(self) -> Task:
        """What was done."""
        return Task(*self[:3])


class Updated(NamedTuple):
    """A device's weight update, in seconds from the step's start."""

    device: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """One step: tasks in the order in which they began, and updates, the last of which ends it."""

    tasks: tuple[Timed, ...]
    updates: tuple[Updated, ...]

    @property
    def step_time_s(self) -> float:
        """When the step ended."""
        return max(update.end_s for update in self.updates)

    def lasting(self, seconds: float) -> Timeline:
        """The same step, all times in proportion, in so many seconds."""
        by = seconds / self.step_time_s
        tasks = []
        for task in self.tasks:
            tasks.append(
                task._replace(
                    sent_s=by * task.sent_s,
                    ready_s=by * task.ready_s,
                    start_s=by * task.start_s,
                    end_s=by * task.end_s,
                )
            )
        updates = []
        for update in self.updates:
            updates.append(
                update._replace(start_s=by * update.start_s, end_s=by * update.end_s)
            )
        return Timeline(tuple(tasks), tuple(updates))


def bubble_bound(stages: int, micro_batches: int) -> float:
    """(S−1)/(K+S−1): the idle fraction of a step with equal stages, if transfers take no time."""
    return (stages - 1) / (micro_batches + stages - 1)


def pipeline_throughput(rates: Sequence[float], micro_batches: int) -> float:
    """K/(K+S−1) · Σ rᵢ(m) samples/s, for stages of equal time.

    rᵢ(m) is each device's rate alone at the micro-batch m. Unequal stages give less: multiply by
    the mean over the largest of their times. A pipeline beats the batch split if that is above Σ
    rᵢ(bᵢ) · T/(T + s/k), with T a piece's compute and one sync of s for every k pieces: what a plan
    predicts.
    """
    return (1 - bubble_bound(len(rates), micro_batches)) * sum(rates)
