"""`plan`: computes the best split from a probe, and what it and those beside it should give. No
device is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from gpubalance.devices.hosts import reached_by
from gpubalance.errors import UsageError
from gpubalance.jobs.keep.saved import balance_by, holds_nothing
from gpubalance.jobs.measure.warnings import warning
from gpubalance.jobs.plan.beside import best_at, by_global_batch, by_goodput, even_split
from gpubalance.jobs.plan.estimates import WORTH_A_ROUND, DeviceEstimates
from gpubalance.jobs.plan.problem import AUTO_MICRO_BATCHES, AUTO_WITHIN, best_split, problem_of
from gpubalance.planning.allocate import allocated, gain, requiring
from gpubalance.planning.noise import efficiency, learning_rate_factor
from gpubalance.planning.problem import Allocation, Load, Problem
from gpubalance.results.common import now
from gpubalance.results.plan import Accumulation, LearningRate, LeftOut, Plan, Predicted, Share
from gpubalance.results.probe import DeviceProbe, Probe
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.planning import PlanRequest
from gpubalance.settings.together import refuse_together

# The most devices without samples for which the gain is computed: each costs two runs of the
# solver.
_MOST_EXPLAINED = 16
# The part of throughput that accumulation must gain to be suggested.
_WORTH_OFFERING = 0.05


def plan(
    probe: Probe, devices: Sequence[Device], request: PlanRequest, joint: JointProfile | None = None
) -> Plan:
    """The best split by the probe, corrected by the balance of exactly these devices that used it,
    if one is kept here.

    With `joint` None it is the latest such balance, whatever its joint run added. Raises what
    `DeviceEstimates` and `best_split` do, and UsageError for a split whose devices the balance's
    all-reduce can't sum.
    """
    known, found = DeviceEstimates(probe, devices, request), balance_by(probe, devices, joint)
    if found is None:
        return plan_of(known, best_split(known.problem))
    _learn(known, found)
    made = plan_of(known, _best(known.problem, found))
    used = [devices[i] for i in made.split.used]
    refuse_together(used, found.settings.all_reduce, devices)
    with_its = {
        "balanced": found.created,
        "settings": found.settings,
        "pipeline": found.pipeline or made.pipeline,
    }
    return made.model_copy(update=with_its)


def _learn(known: DeviceEstimates, found: Plan) -> None:
    """Learns all that the balance measured, and what a device holds less beside the others than its
    probe promised.
    """
    as_asked = PlanRequest(batch_multiple=found.batch_multiple, margin_bytes=found.margin_bytes)
    promised = problem_of(known.probe, known.probes, as_asked).loads
    multiple, pairs = known.problem.multiple, zip(promised, found.shares, strict=True)
    limits = [
        (share.device, share.limit // multiple * multiple)
        for load, share in pairs
        if share.limit < load.limit
    ]
    measured = (
        [(tried.split, tried.measured) for tried in found.balance.rounds] if found.balance else []
    )
    measured += [(found.split, found.run)] if found.run else []
    for split, one in measured:
        if one is None:
            known.ran_out(split, limits)
        else:  # the plan behind it is no longer known, and not needed
            known.learn(Allocation(split, (), one.step_time_s.median, ()), one)


def _best(problem: Problem, found: Plan) -> Allocation:
    """The best split, at the balance's own global batch if another one promises only more within
    the noise.
    """
    best, total = best_split(problem), found.global_batch
    if (
        problem.global_batch is not None
        or total > (problem.max_global_batch or total)
        or total % problem.multiple
    ):
        return best
    try:
        same = best_split(replace(problem, global_batch=total, max_global_batch=None))
    except UsageError:  # impossible with this margin, or without micro-batches
        return best
    if same.split == best.split:
        return best  # which also knows what limits a larger one
    return same if problem.value(best) <= (1 + WORTH_A_ROUND) * problem.value(same) else best


def plan_of(known: DeviceEstimates, found: Allocation) -> Plan:
    """The record of a split, with what is predicted for it by what is known."""
    probe, probes, request, problem = known.probe, known.probes, known.request, known.problem
    sync_s = known.sync_s(found.split)
    return Plan(
        created=now(),
        probed=probe.created,
        settings=probe.settings,
        code=probe.code,
        own_batch=probe.own_batch,
        environment=probe.environment,
        model=probe.model,
        devices=known.devices,
        batches=found.split.batches,
        micro_batches=found.split.micro_batches,
        global_batch=found.split.global_batch,
        batch_multiple=problem.multiple,
        margin_bytes=request.margin_bytes,
        sync_s=sync_s,
        shares=_shares(problem, found, probes),
        predicted=_predicted(known, problem, found),
        left_out=_left_out(problem, found),
        accumulation=_accumulation(problem, found),
        learning_rate=_learning_rate(probe, probes, found.split.global_batch, request),
        pipeline=probe.pipeline,
        reached_by=reached_by(),
        warnings=(
            *([warning("sync-unknown")] if sync_s is None and len(found.split.used) > 1 else []),
            *(
                [warning("batches-differ")]
                if any(point.unlike for one in probes for point in one.curve)
                else []
            ),
        ),
    )


def _shares(
    problem: Problem, found: Allocation, probes: Sequence[DeviceProbe]
) -> tuple[Share, ...]:
    split = found.split
    return tuple(
        Share(
            device=number,
            batch=batch,
            micro_batch=micro,
            limit=load.limit,
            compute_s=compute_s,
            update_s=load.update_s if batch else 0.0,
            utilisation=compute_s / found.step_time_s,
            binds="max batch"
            if binds == "memory" and not _is_memory(one, load, problem.multiple)
            else binds,
        )
        for number, (load, batch, micro, compute_s, binds, one) in enumerate(
            zip(
                problem.loads,
                split.batches,
                split.micro_batches,
                found.compute_s,
                found.binds,
                probes,
                strict=True,
            )
        )
    )


def _is_memory(one: DeviceProbe, load: Load, multiple: int) -> bool:
    """Whether memory sets the device's limit: a larger batch failed, or a joint run's memory was
    subtracted.
    """
    limit = one.batch_limit
    return (
        limit is None
        or limit.fails is not None
        or load.limit < (limit.fits or 0) // multiple * multiple
    )


def _predicted(known: DeviceEstimates, problem: Problem, found: Allocation) -> Predicted:
    busy_s = [found.compute_s[i] + problem.loads[i].update_s for i in found.split.used]
    sync_s, noise_scale = found.step_time_s - max(busy_s), known.request.noise_scale
    even, everywhere = even_split(problem, found.split, sync_s), range(len(problem.loads))
    even_batch = even.split.global_batch if even else None
    bests = [one.solo_best for one in known.probes if not holds_nothing(one)]
    solo_sum = sum(best.throughput for best in bests if best) if all(bests) else None
    return Predicted(
        step_time_s=found.step_time_s,
        throughput=found.throughput,
        sync_s=sync_s,
        imbalance=max(busy_s) * len(busy_s) / sum(busy_s),
        even=even,
        best_at_even=best_at(problem, found.split.used, even_batch, found.split),
        best_at_own=best_at(problem, everywhere, known.probe.own_batch, found.split),
        speedup_over_even=even and found.throughput / even.throughput,
        solo_sum=solo_sum,
        scaling_efficiency=solo_sum and found.throughput / solo_sum,
        by_global_batch=tuple(by_global_batch(problem)),
        noise_scale=noise_scale,
        efficiency=noise_scale and efficiency(found.split.global_batch, noise_scale),
        goodput=noise_scale and problem.value(found),
        by_goodput=tuple(by_goodput(problem, found, even, known.devices, noise_scale))
        if noise_scale
        else (),
    )


def _accumulation(problem: Problem, found: Allocation) -> Accumulation | None:
    """What accumulation would gain, if it was not asked for and the global batch is free to grow;
    None if little.
    """
    if problem.micro_batches > 1 or problem.global_batch is not None:
        return None
    more = allocated(replace(problem, micro_batches=AUTO_MICRO_BATCHES, within=AUTO_WITHIN))
    if more is None or not more.split.accumulates:
        return None
    gain, split = problem.value(more) / problem.value(found) - 1, more.split
    if gain < _WORTH_OFFERING:
        return None
    return Accumulation(
        batches=split.batches,
        micro_batches=split.micro_batches,
        global_batch=split.global_batch,
        gain=gain,
    )


def _left_out(problem: Problem, found: Allocation) -> tuple[LeftOut, ...]:
    # Allow the same number of micro-batches with a device as without it, or their gain would be
    # taken for the device's.
    problem = replace(problem, micro_batches=max(found.split.counts), within=0.0)
    used = frozenset(found.split.used)
    idle = [device for device in range(len(problem.loads)) if device not in used]
    return tuple(
        LeftOut(
            device=device,
            gain=_gain_beside(problem, used, device) if number < _MOST_EXPLAINED else None,
            sync_s=problem.sync.measured.get(used | {device}),
        )
        for number, device in enumerate(idle)
    )


def _gain_beside(problem: Problem, used: frozenset[int], device: int) -> float | None:
    """What a device adds to those in use; instead of them if the global batch is too small for all;
    None for none.
    """
    beside = gain(requiring(problem, used), device)
    return gain(problem, device) if beside is None else beside


def _learning_rate(
    probe: Probe, probes: Sequence[DeviceProbe], new: int, request: PlanRequest
) -> LearningRate | None:
    """From the batch that is asked for, else that of the user's data, else that of the best device
    alone.
    """
    bests = [
        (one.solo_best.throughput, one.solo_best.batch)
        for one in probes
        if one.solo_best is not None
    ]
    old = request.from_batch or probe.own_batch or (max(bests)[1] if bests else None)
    if old is None:
        return None
    return LearningRate(
        from_batch=old,
        to_batch=new,
        # SGD: Goyal et al. 2017, arXiv:1706.02677, with a warm-up over the first epochs.
        linear=new / old,
        square_root=math.sqrt(new / old),  # Adam: Malladi et al. 2022, arXiv:2205.10287
        measured=request.noise_scale and learning_rate_factor(old, new, request.noise_scale),
    )
