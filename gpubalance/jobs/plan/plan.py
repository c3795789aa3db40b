"""`plan`: the best split by a probe, or of the devices that are left. No device is used."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from gpubalance.errors import BadInput, NothingFits, UsageError
from gpubalance.jobs.keep.saved import balance_by
from gpubalance.jobs.plan.estimates import WORTH_A_ROUND, DeviceEstimates
from gpubalance.jobs.plan.problem import best_split, problem_of
from gpubalance.jobs.plan.record import plan_of
from gpubalance.jobs.plan.times import TimesTable
from gpubalance.planning.allocate import allocate, with_only
from gpubalance.planning.model import Curve, Line
from gpubalance.planning.problem import Allocation, Load, NoSplitError, Problem
from gpubalance.planning.sync import Syncs
from gpubalance.results.plan import Plan, Share
from gpubalance.results.probe import Probe
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.planning import PlanRequest
from gpubalance.settings.requests import refuse_together


def check_curves(plan: Plan) -> None:
    """Raises BadInput for a plan without the times that another split would follow from."""
    if not plan.curves:
        raise BadInput(
            "--restarts needs the devices' step times, which this plan does not "
            "contain",
            remedy="gpubalance balance makes a plan that contains them",
        )


def split_over(plan: Plan, left: Set[int]) -> BatchSplit:
    """The best split of the plan's global batch over these of its devices, by its measurements.

    If they do not hold that, it is the split of the largest global batch that they hold. Raises
    NothingFits if they hold nothing.
    """
    problem = with_only(_problem(plan), left)
    try:
        return allocate(problem).split
    except NoSplitError as error:
        if error.below is None:
            raise NothingFits(
                "none of the remaining devices has enough memory for a batch of this "
                "plan"
            ) from None
        return allocate(replace(problem, global_batch=error.below)).split


def _problem(plan: Plan) -> Problem:
    used = frozenset(plan.split.used)
    syncs_s = {used: plan.sync_s or 0.0}
    for device in plan.left_out:
        if device.sync_s is not None:
            syncs_s[used | {device.device}] = device.sync_s
    loads = [
        _load(share, curve)
        for share, curve in zip(plan.shares, plan.curves, strict=True)
    ]
    return Problem(
        loads=tuple(loads),
        sync=Syncs(syncs_s),
        multiple=plan.batch_multiple,
        global_batch=plan.global_batch,
        micro_batches=max(plan.split.counts),
    )


def _load(share: Share, curve: tuple[tuple[int, float], ...]) -> Load:
    if not curve:
        return Load(Line(1.0, 0.0, 0.0), 0)
    return Load(Curve.through(curve), share.limit, share.update_s)


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
