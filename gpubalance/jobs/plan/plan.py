"""`plan`: the best split by a probe, or of the devices that are left, and its record."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import replace

from gpubalance.devices.hosts import reached_by
from gpubalance.errors import BadInput, NothingFits, UsageError
from gpubalance.jobs.plan.estimates import WORTH_A_ROUND, DeviceEstimates
from gpubalance.jobs.plan.problem import (
    AUTO_MICRO_BATCHES,
    AUTO_TOLERANCE,
    best_split,
    problem_of,
)
from gpubalance.jobs.plan.splits import best_at, by_global_batch, by_goodput, even_split
from gpubalance.jobs.plan.times import TimesTable
from gpubalance.jobs.probe.curve import slower_warnings
from gpubalance.jobs.saved import balance_by, holds_nothing
from gpubalance.numbers.units import format_seconds
from gpubalance.planning.allocate import (
    added_fraction,
    allocate,
    allocate_as_measured,
    with_only,
    with_required,
)
from gpubalance.planning.model import Curve, Line
from gpubalance.planning.noise import efficiency, learning_rate_factor
from gpubalance.planning.parts import imbalance_of
from gpubalance.planning.problem import Allocation, Load, NoSplitError, Problem
from gpubalance.planning.sync import Syncs
from gpubalance.results.common import Warning_, now
from gpubalance.results.plan import (
    Accumulation,
    Goodput,
    LearningRate,
    LeftOut,
    Plan,
    Predicted,
    Share,
)
from gpubalance.results.probe import DeviceProbe, Probe
from gpubalance.results.warnings import warning
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.planning import PlanRequest
from gpubalance.settings.requests import refuse_together

# The most devices without samples for which the gain is computed: each costs two runs of the
# solver.
_MOST_EXPLAINED = 16
# The part of throughput that accumulation must gain to be suggested.
_WORTH_OFFERING = 0.05


def plan_of(known: DeviceEstimates, planned: Allocation) -> Plan:
    """The record of a split, with what is predicted for it by what is known."""
    probe = known.probe
    problem = known.problem
    sync_s = known.sync_s(planned.split)
    return Plan(
        created=now(),
        probed=probe.created,
        settings=probe.settings,
        code=probe.code,
        own_batch=probe.own_batch,
        own_batch_stays=probe.own_batch_stays,
        environment=probe.environment,
        model=probe.model,
        devices=known.devices,
        batches=planned.split.batches,
        micro_batches=planned.split.micro_batches,
        global_batch=planned.split.global_batch,
        batch_multiple=problem.multiple,
        margin_bytes=known.request.margin_bytes,
        sync_s=sync_s,
        shares=_shares(problem, planned, known.probes),
        predicted=_predicted(known, problem, planned),
        left_out=_left_out(problem, planned),
        accumulation=_accumulation(problem, planned),
        learning_rate=_learning_rate(known, planned.split.global_batch),
        pipeline=probe.pipeline,
        reached_by=reached_by(),
        curves=tuple(_curve(load, problem.multiple) for load in problem.loads),
        warnings=_warnings(known, planned, sync_s),
    )


def _curve(load: Load, multiple: int) -> tuple[tuple[int, float], ...]:
    """The points of a device's step-time model; two tell a line."""
    if not load.limit:
        return ()
    batches: Sequence[int] = (multiple, 2 * multiple)
    if isinstance(load.model, Curve):
        batches = load.model.batches
    return tuple((batch, load.model.measured_s(batch)) for batch in batches)


def _warnings(
    known: DeviceEstimates, planned: Allocation, sync_s: float | None
) -> tuple[Warning_, ...]:
    warnings = []
    if len(planned.split.used) > 1:
        if known.probe.is_of_times and known.best() is None:
            taken_as = format_seconds(known.request.sync_s or 0.0)
            warnings.append(warning("joint-unknown", sync=taken_as))
        elif sync_s is None:
            warnings.append(warning("sync-unknown"))
    samples = known.probe.samples
    if samples is not None and _takes_all(known.problem, planned, samples):
        warnings.append(
            warning(
                "few-samples", data=known.probe.settings.data, samples=f"{samples:,}"
            )
        )
    if any(point.unlike for probe in known.probes for point in probe.curve):
        warnings.append(warning("batches-differ"))
    given = known.probe.environment is None
    for device, entry in zip(known.devices, known.probes, strict=True):
        warnings += slower_warnings(device.label, entry.curve, given=given)
    return tuple(warnings)


def _takes_all(problem: Problem, planned: Allocation, samples: int) -> bool:
    """Whether the global batch might be larger if the data had more samples."""
    is_most = problem.max_global_batch == samples and problem.global_batch is None
    return is_most and planned.split.global_batch + problem.multiple > samples


def _shares(
    problem: Problem, planned: Allocation, probes: Sequence[DeviceProbe]
) -> tuple[Share, ...]:
    shares = []
    for device, load in enumerate(problem.loads):
        batch = planned.split.batches[device]
        binds = planned.binds[device]
        is_memory = _is_memory(probes[device], load, problem.multiple)
        share = Share(
            device=device,
            batch=batch,
            micro_batch=planned.split.micro_batches[device],
            limit=load.limit,
            compute_s=planned.compute_s[device],
            update_s=load.update_s if batch else 0.0,
            utilisation=planned.compute_s[device] / planned.step_time_s,
            binds="max batch" if binds == "memory" and not is_memory else binds,
        )
        shares.append(share)
    return tuple(shares)


def _is_memory(probe: DeviceProbe, load: Load, multiple: int) -> bool:
    """Whether memory sets the device's limit.

    Either a larger batch failed, or a joint run's memory was subtracted.
    """
    limit = probe.batch_limit
    if limit is None or limit.fails is not None:
        return True
    return load.limit < (limit.fits or 0) // multiple * multiple


def _predicted(
    known: DeviceEstimates, problem: Problem, planned: Allocation
) -> Predicted:
    split = planned.split
    busy_s = [
        planned.compute_s[device] + problem.loads[device].update_s
        for device in split.used
    ]
    sync_s = 0.0
    if len(split.used) > 1:
        # Measured step and compute times each have noise of their own.
        sync_s = max(0.0, planned.step_time_s - max(busy_s))
    even = even_split(problem, split)
    even_batch = even.split.global_batch if even else None
    solo_sum = _solo_sum(known.probes)
    noise_scale = known.request.noise_scale
    goodputs: tuple[Goodput, ...] = ()
    if noise_scale:
        goodputs = tuple(by_goodput(problem, planned, even, known.devices, noise_scale))
    return Predicted(
        step_time_s=planned.step_time_s,
        throughput=planned.throughput,
        sync_s=sync_s,
        imbalance=imbalance_of(busy_s),
        even=even,
        best_at_even=best_at(problem, split.used, even_batch, split),
        best_at_own=best_at(
            problem, range(len(problem.loads)), known.probe.own_batch, split
        ),
        speedup_over_even=even and planned.throughput / even.throughput,
        solo_sum=solo_sum,
        solo_with_xla=any((probe.xla_ratio or 0.0) > 1 for probe in known.probes),
        scaling_efficiency=solo_sum and planned.throughput / solo_sum,
        by_global_batch=tuple(by_global_batch(problem)),
        noise_scale=noise_scale,
        efficiency=noise_scale and efficiency(split.global_batch, noise_scale),
        goodput=noise_scale and problem.value(planned),
        by_goodput=goodputs,
    )


def _solo_sum(probes: Sequence[DeviceProbe]) -> float | None:
    """The sum of what the devices give alone; None if a device's best is unknown."""
    total = 0.0
    for probe in probes:
        if probe.alone is not None:
            total += probe.alone
        elif not holds_nothing(probe):
            return None
    return total


def _accumulation(problem: Problem, planned: Allocation) -> Accumulation | None:
    """What accumulation would gain; None if little, or if it is not for us to choose.

    It is to choose if it was not asked for, and the global batch is free to grow.
    """
    if problem.micro_batches > 1 or problem.global_batch is not None:
        return None
    best = allocate_as_measured(
        replace(
            problem,
            micro_batches=AUTO_MICRO_BATCHES,
            micro_batch_tolerance=AUTO_TOLERANCE,
        )
    )
    if best is None or not best.split.accumulates:
        return None
    gain = problem.value(best) / problem.value(planned) - 1
    if gain < _WORTH_OFFERING:
        return None
    return Accumulation(
        batches=best.split.batches,
        micro_batches=best.split.micro_batches,
        global_batch=best.split.global_batch,
        gain=gain,
    )


def _left_out(problem: Problem, planned: Allocation) -> tuple[LeftOut, ...]:
    # Allow the same number of micro-batches with a device as without it, or their gain would be
    # taken for the device's.
    problem = replace(
        problem, micro_batches=max(planned.split.counts), micro_batch_tolerance=0.0
    )
    used = frozenset(planned.split.used)
    left_out: list[LeftOut] = []
    for device in range(len(problem.loads)):
        if device in used:
            continue
        gain = None
        if len(left_out) < _MOST_EXPLAINED:
            gain = _gain_beside(problem, used, device)
        sync_s = problem.sync.measured.get(used | {device})
        left_out.append(LeftOut(device=device, gain=gain, sync_s=sync_s))
    return tuple(left_out)


def _gain_beside(problem: Problem, used: frozenset[int], device: int) -> float | None:
    """What a device adds to those in use; None for nothing.

    It takes the place of one of them if the global batch is too small for all.
    """
    beside = added_fraction(with_required(problem, used), device)
    return added_fraction(problem, device) if beside is None else beside


def _learning_rate(known: DeviceEstimates, to_batch: int) -> LearningRate | None:
    """From the batch that is asked for, else that of the user's data, else the best device's."""
    from_batch = known.request.from_batch or known.probe.own_batch
    if not from_batch:
        bests = [
            probe.solo_best for probe in known.probes if probe.solo_best is not None
        ]
        if not bests:
            return None
        from_batch = max(bests, key=lambda best: (best.throughput, best.batch)).batch
    noise_scale = known.request.noise_scale
    return LearningRate(
        from_batch=from_batch,
        to_batch=to_batch,
        # SGD: Goyal et al. 2017, arXiv:1706.02677, with a warm-up over the first epochs.
        linear=to_batch / from_batch,
        # Adam: Malladi et al. 2022, arXiv:2205.10287.
        square_root=math.sqrt(to_batch / from_batch),
        measured=noise_scale
        and learning_rate_factor(from_batch, to_batch, noise_scale),
    )


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
