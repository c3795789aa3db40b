"""Makes a plan from what a balance found about the devices together, which no probe of each alone shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpubalance.errors import UsageError
from gpubalance.jobs.balance.knowledge import WORTH_A_ROUND, Knowledge
from gpubalance.jobs.keep.saved import balance_by
from gpubalance.jobs.plan.plan import plan, plan_of
from gpubalance.jobs.plan.problem import best_split, find_probes, loads_of
from gpubalance.planning.problem import Allocation, Problem
from gpubalance.planning.sync import with_sync
from gpubalance.results.plan import Plan
from gpubalance.results.probe import Probe
from gpubalance.results.run import Measurement
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.requests import PlanRequest
from gpubalance.settings.shares import Shares


def plan_by_all_known(
    probe: Probe, devices: Sequence[Device], request: PlanRequest, joint: JointProfile | None = None
) -> Plan:
    """The best split by the probe, corrected by the balance of exactly these devices that used it, if one is kept here.

    With `joint` None it is the latest such balance, whatever its joint run added. Raises what `plan` does.
    """
    found = balance_by(probe, devices, joint)
    if found is None:
        return plan(probe, devices, request)
    known = Knowledge(probe, find_probes(probe, devices), request)
    _learn(known, found, _limits(probe, devices, request, found))
    problem, asked = known.problem, known.request
    if request.sync_s is not None:
        hosts = len({load.host for load in problem.loads})
        problem, asked = with_sync(problem, {hosts: request.sync_s}), request
    made = plan_of(_best(problem, found), problem, probe, devices, asked)
    with_its = {"balanced": found.created, "settings": found.settings, "pipeline": found.pipeline or made.pipeline}
    return made.model_copy(update=with_its)


def _learn(known: Knowledge, found: Plan, limits: Sequence[tuple[int, int]]) -> None:
    """Learns all that the balance measured."""
    for split, measured in _measured(found):
        if measured is None:
            known.ran_out(split, limits)
        else:  # the plan behind it is no longer known, and not needed
            known.learn(Allocation(split, (), measured.step_time_s.median, ()), measured)


def _measured(found: Plan) -> Iterator[tuple[Shares, Measurement | None]]:
    if found.balance:
        yield from ((tried.split, tried.measured) for tried in found.balance.rounds)
        if found.balance.run:
            yield found.split, found.balance.run


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
