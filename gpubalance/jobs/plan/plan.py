"""`plan`: computes the best split from a probe, and what it should give. No device is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpubalance.errors import UsageError
from gpubalance.jobs.keep.saved import balance_by
from gpubalance.jobs.plan.estimates import WORTH_A_ROUND, DeviceEstimates
from gpubalance.jobs.plan.problem import best_split, problem_of
from gpubalance.jobs.plan.record import plan_of
from gpubalance.jobs.plan.times import TimesTable
from gpubalance.planning.problem import Allocation, Problem
from gpubalance.results.plan import Plan
from gpubalance.results.probe import Probe
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.planning import PlanRequest
from gpubalance.settings.requests import refuse_together


def plan(
    probe: Probe,
    devices: Sequence[Device],
    request: PlanRequest,
    joint: JointProfile | None = None,
) -> Plan:
    """The best split by the probe, corrected by a balance if one is kept here.

    It is the balance of exactly these devices that used the probe; with `joint` None the latest
    one, whatever its joint run added. Raises what `DeviceEstimates` and `best_split` do, and
    UsageError for a split whose devices the balance's all-reduce can't sum.
    """
    known = DeviceEstimates(probe, devices, request)
    balanced = balance_by(probe, devices, joint)
    if balanced is None:
        return plan_of(known, best_split(known.problem))
    _learn(known, balanced)
    made = plan_of(known, _best(known.problem, balanced))
    used = [devices[number] for number in made.split.used]
    refuse_together(used, balanced.settings.all_reduce, devices)
    changes = {
        "balanced": balanced.created,
        "settings": balanced.settings,
        "pipeline": balanced.pipeline or made.pipeline,
    }
    return made.model_copy(update=changes)


def plan_of_times(
    table: TimesTable, devices: Sequence[Device], request: PlanRequest
) -> Plan:
    """The best split by a table of step times, corrected by the joint steps in it.

    Joint steps of other devices than these do not count. Raises what `DeviceEstimates` and
    `best_split` do.
    """
    known = DeviceEstimates(table.probe, devices, request)
    for step in table.joint:
        measured = step.measured(devices, known.problem)
        if measured is not None:
            split, measurement = measured
            planned = Allocation(split, (), measurement.step_time_s.median, ())
            known.learn(planned, measurement)
    multiple = known.problem.multiple
    for number, device in enumerate(devices):
        for name, batch in table.ran_out:
            if name == device.name:
                known.lower_limit(number, (batch - 1) // multiple * multiple)
    return plan_of(known, best_split(known.problem))


def _learn(known: DeviceEstimates, balanced: Plan) -> None:
    """Learns all that the balance measured.

    Also what a device holds less beside the others than its probe promised.
    """
    asked = PlanRequest(
        batch_multiple=balanced.batch_multiple, margin_bytes=balanced.margin_bytes
    )
    promised = problem_of(known.probe, known.probes, balanced.devices, asked).loads
    multiple = known.problem.multiple
    limits = []
    for load, share in zip(promised, balanced.shares, strict=True):
        if share.limit < load.limit:
            limits.append((share.device, share.limit // multiple * multiple))
    measured = []
    if balanced.balance:
        measured += [(tried.split, tried.measured) for tried in balanced.balance.rounds]
    if balanced.run:
        measured.append((balanced.split, balanced.run))
    for split, measurement in measured:
        if measurement is None:
            known.lower_limits(split, limits)
        else:  # the plan behind it is no longer known, and not needed
            planned = Allocation(split, (), measurement.step_time_s.median, ())
            known.learn(planned, measurement)


def _best(problem: Problem, balanced: Plan) -> Allocation:
    """The best split; at the balance's own global batch if others gain only within the noise."""
    best = best_split(problem)
    own = balanced.global_batch
    is_too_large = own > (problem.max_global_batch or own)
    if problem.global_batch is not None or is_too_large or own % problem.multiple:
        return best
    try:
        same = best_split(replace(problem, global_batch=own, max_global_batch=None))
    except UsageError:  # impossible with this margin, or without micro-batches
        return best
    if same.split == best.split:
        return best  # which also knows what limits a larger one
    gains = problem.value(best) > (1 + WORTH_A_ROUND) * problem.value(same)
    return best if gains else same
