"""The record of a run, from the windows of its split and of those beside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpubalance.jobs.environment import environment
from gpubalance.jobs.measure.pipeline import held_against
from gpubalance.jobs.measure.warnings import batches_joined, of_figures, resumed, warning
from gpubalance.numbers.ratio import ratio
from gpubalance.results.common import Warning_, now
from gpubalance.results.run import Baselines, Measurement, Run, alone_in_use

if TYPE_CHECKING:
    from gpubalance.jobs.measure.joint import JointRun


def run_result(joint: JointRun) -> Run | None:
    """The result of what was measured so far; None until the split has a window."""
    asked, own, facts, solo = joint.asked, joint.own, joint.party.facts, joint.solo
    if not own.windows:
        return None
    four = own, joint.even, joint.largest_even, joint.best_at_largest
    known = [one if one and one.windows else None for one in four]
    began_s = min(one.began_s for one in known if one)
    measured, even, largest, best = (one.measurement(asked.split.used, began_s) if one else None for one in known)
    assert measured is not None  # noqa: S101  (it has a window)
    rate, times = measured.throughput.median, measured.step_time_s.samples
    faster = even and ratio(rate / even.throughput.median, times, even.step_time_s.samples)
    solo_sum = sum(one.throughput for one in solo) if solo else None
    held = joint.held.throughput if joint.held and joint.held.windows else None
    batches = {"batches": asked.split.batches, "micro_batches": asked.split.micro_batches}
    return Run(
        created=now(),
        settings=asked.settings,
        environment=environment(joint.driver),
        model=facts.model,
        devices=asked.devices,
        **{**dict(measured), **batches},
        warmup_steps=own.warmup_steps,
        steps=own.steps,
        stamp_cost=own.stamp_cost,
        baselines=Baselines(
            even=measured if joint.is_even else even,
            largest_even=largest,
            best_at_largest_even=best,
            solo_best=solo,
            solo_sum=solo_sum,
        ),
        speedup_over_even=1.0 if joint.is_even else faster and faster.value,
        speedup_ci95=(1.0, 1.0) if joint.is_even else faster and faster.ci95,
        scaling_efficiency=solo_sum and rate / solo_sum,
        pipeline=joint.alone and held_against(joint.alone, held, alone_in_use(solo, asked.split.batches)),
        complete=joint.complete,
        warnings=(*joint.warnings, *_warnings(joint, measured)),
    )


def _warnings(joint: JointRun, measured: Measurement) -> Iterator[Warning_]:
    """What else was found, and the warnings about the figures."""
    if len(measured.batches) > 1:
        yield from (warning("not-exact", text=text) for text in joint.party.facts.warned)
    yield from resumed(joint.again)
    known = [one for one in joint.series if one.windows]
    excess_part = measured.excess_s / measured.step_time_s.median
    yield from of_figures(joint.request.settings.model, joint.own.slowed, known, excess_part=excess_part)
    yield from batches_joined(joint.alone.joined_from if joint.alone else None, measured.global_batch)
