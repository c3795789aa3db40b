"""Makes a plan from what a balance found about the devices together, which no probe of each alone shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpubalance.errors import UsageError
from gpubalance.jobs.balance.knowledge import WORTH_A_ROUND, Knowledge
from gpubalance.jobs.keep.saved import balance_by
from gpubalance.jobs.plan.plan import plan
from gpubalance.jobs.plan.problem import best_split, find_probes, loads_of
from gpubalance.jobs.plan.record import plan_of
from gpubalance.planning.problem import Allocation, Problem
from gpubalance.planning.sync import with_sync
from gpubalance.results.plan import Plan
from gpubalance.results.probe import Probe
from gpubalance.results.run import Measurement, Run
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.requests import PlanRequest
from gpubalance.settings.shares import Shares


def plan_by_all_known(
    probe: Probe,
    devices: Sequence[Device],
    request: PlanRequest,
    joint: JointProfile | None = None,
) -> Plan:
    """The best split by the probe and, if one that started from it is kept here, by the balance of these devices.

    With `joint` None it is the latest such balance, whatever its joint run added. Raises what `plan` does.
    """
    found = balance_by(probe, devices, joint)
    return plan(probe, devices, request) if found is None else plan_by_balance(probe, devices, request, found)


def plan_by_balance(probe: Probe, devices: Sequence[Device], request: PlanRequest, found: Plan) -> Plan:
    """The best split by the probe, corrected by what the balance measured, for its all-reduce. Raises what `plan` does.

    `found` is the result of a balance that used this probe and these devices in this order.
    """
    known = _learned(probe, devices, request, found)
    problem, asked = known.problem, known.request
    if request.sync_s is not None:
        hosts = len({load.host for load in problem.loads})
        problem, asked = with_sync(problem, {hosts: request.sync_s}), request
    made = plan_of(_best(problem, found), problem, probe, devices, asked)
    with_its = {"balanced": found.created, "settings": found.settings, "pipeline": found.pipeline or made.pipeline}
    return made.model_copy(update=with_its)


def _learned(probe: Probe, devices: Sequence[Device], request: PlanRequest, found: Plan) -> Knowledge:
    """What the balance knew at its end."""
    probes = find_probes(probe, devices)
    known = Knowledge(probe, probes, request)
    balance = found.balance
    for tried in balance.rounds if balance else ():
        if tried.measured is not None:
            known.learn(_as_it_ran(tried.split, tried.measured), tried.measured)
        else:
            known.ran_out(tried.split, _limits(probe, devices, request, found))
    if balance and balance.run:
        known.learn(_as_it_ran(found.split, balance.run), balance.run)
    return known


def _as_it_ran(split: Shares, measured: Measurement | Run) -> Allocation:
    """The split as an allocation without the plan behind it, which is no longer known and not needed."""
    return Allocation(split, (), measured.step_time_s.median, ())


def _limits(probe: Probe, devices: Sequence[Device], request: PlanRequest, found: Plan) -> list[tuple[int, int]]:
    """(device, largest micro-batch) of each device that holds less beside the others than its probe promised."""
    as_asked = PlanRequest(batch_multiple=found.batch_multiple, margin_bytes=found.margin_bytes)
    promised = loads_of(probe, find_probes(probe, devices), as_asked)
    multiple = request.batch_multiple or probe.batch_multiple
    pairs = zip(promised, found.shares, strict=True)
    return [(share.device, share.limit // multiple * multiple) for load, share in pairs if share.limit < load.limit]


def _best(problem: Problem, found: Plan) -> Allocation:
    """The best split, at the balance's own global batch if another one promises only more within the noise."""
    best, total = best_split(problem), found.global_batch
    if problem.global_batch is not None or total > (problem.max_global_batch or total) or total % problem.multiple:
        return best
    try:
        same = best_split(replace(problem, global_batch=total, max_global_batch=None))
    except UsageError:  # impossible with this margin, or without micro-batches
        return best
    if same.split == best.split:
        return best  # which also knows what limits a larger one
    return same if problem.value(best) <= (1 + WORTH_A_ROUND) * problem.value(same) else best
