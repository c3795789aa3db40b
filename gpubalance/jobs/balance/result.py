"""The plan that a balance ends with, or has so far."""

from __future__ import annotations

from gpubalance.jobs.balance.gap import solo_gap
from gpubalance.jobs.balance.rounds import BalanceRounds
from gpubalance.jobs.balance.tried import TriedSplit
from gpubalance.jobs.measure.warnings import batches_joined, resumed, speed_changed
from gpubalance.jobs.plan.beside import best_at
from gpubalance.jobs.plan.measured_split import MeasuredSplit
from gpubalance.jobs.plan.record import plan_of
from gpubalance.results.common import Warning_
from gpubalance.results.plan import Balance, Plan


def result_so_far(rounds: BalanceRounds) -> Plan | None:
    """The plan of the best proven split, else of the best measured one; None before either."""
    best = rounds.known.best(proven=True) or rounds.known.best()
    return None if best is None else result_of(rounds, best)


def result_of(rounds: BalanceRounds, best: MeasuredSplit) -> Plan:
    """The plan of that split, with how it was found."""
    known = rounds.known
    run = best.run
    plan = plan_of(known, best.as_measured)
    predicted = plan.predicted
    gap = None
    if run is not None:
        gap = solo_gap(known, plan.split, run)
        even = run.baselines.even
        # What fits was tried: it may be another than was predicted
        if even is not None:
            at_even = best_at(
                known.problem, plan.split.used, even.global_batch, plan.split
            )
            predicted = predicted.model_copy(update={"best_at_even": at_even})
    changes = {
        "predicted": predicted,
        "settings": rounds.together.settings_for(plan.split),
        "pipeline": rounds.pipeline or plan.pipeline,
        "balance": Balance(
            rounds=tuple(rounds.records),
            run=run,
            solo_gap=gap,
            overhead=rounds.together.overhead,
        ),
        "warnings": (*plan.warnings, *_warnings(rounds, plan.global_batch)),
    }
    return plan.model_copy(update=changes)


def _warnings(rounds: BalanceRounds, global_batch: int) -> list[Warning_]:
    warnings = []
    for device, change in rounds.known.changed():
        warnings.append(speed_changed(rounds.request.devices[device], change))
    warnings += resumed(rounds.journal.reused[TriedSplit], "rounds")
    if rounds.pipeline is not None:
        warnings += batches_joined(rounds.pipeline.joined_from, global_batch)
    return warnings + rounds.warnings
