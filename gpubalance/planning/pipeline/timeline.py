"""A step of a pipeline, task by task, simulated or measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

Pass: TypeAlias = Literal["forward", "backward"]


@dataclass(frozen=True)
class Task:
    """One pass of one micro-batch through one segment."""

    segment: int
    kind: Pass
    micro_batch: int


@dataclass(frozen=True)
class Timed:
    """A task on its device, in seconds from the step's start. `ready_s` is when all its inputs had arrived."""

    task: Task
    device: int
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
        tasks = (
            replace(one, ready_s=by * one.ready_s, start_s=by * one.start_s, end_s=by * one.end_s) for one in self.tasks
        )
        updates = ((device, by * start_s, by * end_s) for device, start_s, end_s in self.updates)
        return Timeline(tuple(tasks), tuple(updates), seconds)

    def of(self, device: int) -> tuple[Timed, ...]:
        """A device's tasks, in the order in which it did them."""
        return tuple(sorted((timed for timed in self.tasks if timed.device == device), key=lambda timed: timed.start_s))
