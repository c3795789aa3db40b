"""A cut as a key of a journal, in a record, and in words."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.jobs.layers.known import Planned
from gpubalance.settings.device import Device
from gpubalance.settings.shares import count_text, run_text


def segments_of(planned: Planned) -> tuple[tuple[int, int, int], ...]:
    """(first block, last block, device) of each segment."""
    return tuple((one.first, one.last, one.device) for one in planned.placement.segments)


def cut_key(planned: Planned) -> str:
    """Text that is equal for equal cuts with equal micro-batches, and as many of them in flight."""
    return f"{planned.problem.micro_batch} {segments_of(planned)} {planned.placement.in_flight}"


def cut_text(planned: Planned, devices: Sequence[Device]) -> str:
    """`GPU:0 blocks 0–8, GPU:1 blocks 9–17; 16 micro-batches of 32`."""
    placed, problem = planned.placement, planned.problem
    stages = [f"{devices[one.device].label} blocks {run_text(one.first, one.last)}" for one in placed.segments]
    return f"{', '.join(stages)}; {count_text(problem.micro_batches, problem.micro_batch)}"
