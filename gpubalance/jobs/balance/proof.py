"""The proof of a split: it runs interleaved with the even split; and the plan that says so."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

from gpubalance.errors import GpubalanceError, OutOfMemory
from gpubalance.jobs.balance.rounds import BalanceRounds, TriedSplit, even_is_faster
from gpubalance.jobs.endings import attach_partial
from gpubalance.jobs.events import Doing, PhaseBegun, TimeLeft
from gpubalance.jobs.measure.input_pipeline import (
    USUAL_PIPELINE_S,
    held_against,
    measure_input_pipeline,
)
from gpubalance.jobs.measure.joint import ExpectedRun, JointRun
from gpubalance.jobs.measure.measurer import Measurer
from gpubalance.jobs.measure.trace import trace
from gpubalance.jobs.measure.warnings import batches_joined, resumed, speed_changed
from gpubalance.jobs.plan.estimates import WORTH_A_ROUND, DeviceEstimates
from gpubalance.jobs.plan.plan import plan_of
from gpubalance.jobs.plan.splits import MeasuredSplit, best_at, split_over
from gpubalance.jobs.saved import holds_nothing, solo_bests_of
from gpubalance.numbers.units import DurationRange
from gpubalance.planning.problem import Allocation
from gpubalance.results.common import Warning_
from gpubalance.results.plan import Balance, Plan
from gpubalance.results.run import (
    DeviceRun,
    Measurement,
    Run,
    SoloGap,
    divide_gap,
)
from gpubalance.results.warnings import TOGETHER, warning
from gpubalance.settings.batch_split import BatchSplit


def prove(rounds: BalanceRounds, planned: Allocation) -> None:
    """Runs a split interleaved with the even split, then checks its devices' speed.

    A device may have changed its speed during the run: its present speed decides. If the even split
    is clearly faster, as on a machine whose speed comes and goes, it is proven too.
    """
    key = rounds.journal_key("out of memory in a proof", planned.split)
    ran_out = rounds.journal.load(key, TriedSplit)
    rounds.proofs += 1  # under which the windows of the next proof are kept
    if ran_out is not None:
        rounds.note(planned, ran_out)
        return
    try:
        proof, now = _proof(rounds, planned)
    except OutOfMemory as error:
        ran_out = rounds.after_out_of_memory(planned.split, error)
        rounds.journal.keep(key, ran_out)
        rounds.note(planned, ran_out)
        return
    rounds.estimates.learn(planned, proof)
    # Its interval is clearly below 1.
    if proof.speedup_ci95 is not None and proof.speedup_ci95[1] < 1 - WORTH_A_ROUND:
        _prove_even(rounds, planned, proof)
    if not rounds.no_rounds_left and rounds.estimates.moved(planned.split, now):
        text = "a device is slower than when the run began: planning again"
        rounds.watch(Doing(text))
        rounds.note(planned, TriedSplit(split=planned.split, measured=now))


def _proof(rounds: BalanceRounds, planned: Allocation) -> tuple[Run, Measurement]:
    """The run of the split interleaved with the even split, and what its devices do at its end."""
    split = planned.split
    expected = _expected_proof(rounds, split)
    duration = expected.duration if expected else None
    rounds.watch(PhaseBegun("proof", duration=duration))
    beside = ", interleaved with the even split"
    if rounds.is_proven_alone(split):
        beside = ""
    rounds.watch(Doing(f"proving {split} in a final run{beside}"))
    solo = solo_bests_of(rounds.probe, rounds.request.devices, split)
    asked = rounds.joint_workers.run_request(split)
    worker_group = rounds.joint_workers.gather(split)
    measurer = Measurer(worker_group, rounds.journal, rounds.watch, key=rounds.proofs)
    window_s = expected.window_s if expected else 0.0
    proof = JointRun(asked, measurer, solo, window_s=window_s)
    try:
        with attach_partial(proof.state.result):
            proof.measure()
        # It has windows
        return cast("Run", proof.state.result()), proof.state.last()
    except GpubalanceError as error:
        if rounds.estimates.best(proven=True) is not None:
            error.partial = result_so_far(rounds)
        elif isinstance(error.partial, Run):
            error.partial = result_of(rounds, MeasuredSplit(planned, (error.partial,)))
        raise


def _expected_proof(rounds: BalanceRounds, split: BatchSplit) -> ExpectedRun | None:
    """About how long the proof takes, by the split's last round; None if unknown."""
    for record in reversed(rounds.records):
        measured = record.measured
        if measured is not None and record.split == split:
            step_time = measured.step_time_s
            noise = step_time.relative_half_width * math.sqrt(len(step_time.samples))
            return rounds.expected_proof(split, step_time.median, noise)
    return None


def _prove_even(rounds: BalanceRounds, planned: Allocation, proof: Run) -> None:
    """Proves the even split, which was faster than the planned one, if it is as asked."""
    even = proof.baselines.even
    if even is None:
        return
    split = split_over(even, len(rounds.request.devices))
    even_is_as_asked = rounds.estimates.is_as_asked(split)
    faster_even = even_is_faster(
        proof,
        even,
        split,
        even_is_as_asked=even_is_as_asked,
        multiple=rounds.estimates.problem.multiple,
    )
    rounds.warn(faster_even)
    if even_is_as_asked:
        allocated = replace(planned, split=split, step_time_s=even.step_time_s.median)
        rounds.estimates.learn(allocated, even)
        # Which it needs, as the largest that fits may be above the limits of the planner.
        prove(rounds, allocated)


def result_so_far(rounds: BalanceRounds) -> Plan | None:
    """The plan of the best proven split, else of the best measured one; None before either."""
    best = rounds.estimates.best(proven=True) or rounds.estimates.best()
    return None if best is None else result_of(rounds, best)


def result_of(rounds: BalanceRounds, best: MeasuredSplit) -> Plan:
    """The plan of that split, with how it was found."""
    estimates = rounds.estimates
    run = best.run
    plan = plan_of(estimates, best.as_measured)
    predicted = plan.predicted
    gap = None
    if run is not None:
        gap = solo_gap(estimates, plan.split, run)
        even = run.baselines.even
        # What fits was tried: it may be another than was predicted
        if even is not None:
            at_even = best_at(
                estimates.problem, plan.split.used, even.global_batch, plan.split
            )
            predicted = predicted.model_copy(update={"best_at_even": at_even})
    changes = {
        "predicted": predicted,
        "settings": rounds.joint_workers.settings_for(plan.split),
        "pipeline": rounds.pipeline or plan.pipeline,
        "balance": Balance(
            rounds=tuple(rounds.records),
            run=run,
            solo_gap=gap,
            overhead=rounds.joint_workers.overhead,
        ),
        "warnings": (*plan.warnings, *_warnings(rounds, best)),
    }
    return plan.model_copy(update=changes)


def _warnings(rounds: BalanceRounds, best: MeasuredSplit) -> list[Warning_]:
    warnings = []
    split = best.planned.split
    times = rounds.estimates.times_alone(
        split, best.run or best.counted_measurements[-1]
    )
    if times > TOGETHER:
        warnings.append(warning("slower-together", factor=times))
    for device, change in rounds.estimates.changed():
        warnings.append(speed_changed(rounds.request.devices[device], change))
    if rounds.estimates.stamps_are_late:
        warnings.append(warning("stamps-late"))
    warnings += resumed(rounds.journal.reused[TriedSplit], "rounds")
    if rounds.pipeline is not None:
        warnings += batches_joined(rounds.pipeline.joined_from, split.global_batch)
    return warnings + rounds.warnings


def solo_gap(known: DeviceEstimates, split: BatchSplit, run: Run) -> SoloGap | None:
    """The parts of the difference; None if a device's best alone or time in a step is unknown."""
    if known.stamps_are_late:
        return None
    busy_s = {replica.device: replica.busy_s for replica in run.replicas}
    devices = []
    for device, probe in enumerate(known.probes):
        if probe.solo_best is None and not holds_nothing(probe):
            return None
        best = 0.0
        if probe.solo_best is not None:
            best = probe.solo_best.throughput
        alone_s = known.alone_s(device, split) + known.alone_update_s(device)
        batch = split.batches[device]
        devices.append(DeviceRun(best, batch, alone_s, busy_s.get(device, 0.0)))
    with_xla = sum((probe.alone or 0.0) for probe in known.probes)
    xla = with_xla - sum(device.solo_best for device in devices)
    return divide_gap(devices, run.step_time_s.median, run.slow_s, xla)


def finish(rounds: BalanceRounds, split: BatchSplit, proof: Run) -> None:
    """Measures the user's pipeline and traces steps, each if it is asked for."""
    request = rounds.request
    # The proof, with batches on the devices, does not show the pipeline.
    if request.settings.data is not None:
        rounds.watch(TimeLeft(DurationRange.about(USUAL_PIPELINE_S)))
        worker_group = rounds.joint_workers.gather(split)
        alone = measure_input_pipeline(worker_group, split.global_batch, rounds.watch)
        rounds.pipeline = held_against(alone, proof.throughput, proof.solo_sum_in_use)
    if request.tracing is not None:
        worker_group = rounds.joint_workers.gather(split)
        rounds.warnings += trace(
            worker_group, {0: split.without_idle}, request.tracing, rounds.watch
        )
