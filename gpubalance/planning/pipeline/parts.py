"""Where a step's time goes on each device of a pipeline, simulated or measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpubalance.planning.pipeline.segments import Link
from gpubalance.planning.pipeline.simulate import inputs_of
from gpubalance.planning.pipeline.timeline import Task, Timeline


@dataclass(frozen=True)
class StageParts:
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


def sent_at(timeline: Timeline, links: Sequence[Link]) -> dict[Task, float]:
    """When the last input of each task was made; 0 for a task without inputs."""
    ends = {timed.task: timed.end_s for timed in timeline.tasks}
    return {task: max((ends[given] for given in inputs_of(task, links)), default=0.0) for task in ends}


def parts_of(timeline: Timeline, links: Sequence[Link]) -> tuple[StageParts, ...]:
    """The parts of each device in use, in order of their numbers.

    A task began at s on a device that was free from f on; its last input was sent at t and arrived at r. Before it,
    min(r, s) − max(f, t) is transfer, if that is above 0.
    """
    sent = sent_at(timeline, links)
    found = []
    for device, began_s, ended_s in sorted(timeline.updates):
        free_s = transfer_s = 0.0
        for timed in timeline.of(device):
            transfer_s += max(0.0, min(timed.ready_s, timed.start_s) - max(free_s, sent[timed.task]))
            free_s = timed.end_s
        sums = {"forward": 0.0, "backward": 0.0}
        for timed in timeline.of(device):
            sums[timed.task.kind] += timed.end_s - timed.start_s
        update_s = ended_s - began_s
        left = timeline.step_time_s - sum(sums.values()) - transfer_s - update_s
        found.append(StageParts(device, sums["forward"], sums["backward"], transfer_s, update_s, left))
    return tuple(found)
