"""A cut in the form for a journal, and in words."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.jobs.layers.kept import KeptCut
from gpubalance.jobs.layers.known import Planned
from gpubalance.settings.device import Device
from gpubalance.settings.shares import count_text, run_text


def kept_cut(planned: Planned) -> KeptCut:
    """The journal's record of a cut that is not measured yet."""
    placed = planned.placement
    return KeptCut(
        micro_batch=planned.problem.micro_batch,
        segments=tuple((one.first, one.last, one.device) for one in placed.segments),
        in_flight=placed.in_flight,
    )


def cut_text(planned: Planned, devices: Sequence[Device]) -> str:
    """`GPU:0 blocks 0–8, GPU:1 blocks 9–17; 16 micro-batches of 32`."""
    placed, problem = planned.placement, planned.problem
    stages = [f"{devices[one.device].label} blocks {run_text(one.first, one.last)}" for one in placed.segments]
    return f"{', '.join(stages)}; {count_text(problem.micro_batches, problem.micro_batch)}"
