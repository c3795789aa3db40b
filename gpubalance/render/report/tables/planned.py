"""A plan's numbers: each device's share, what is predicted, the splits that were tried, the learning rate."""

from __future__ import annotations

from gpubalance.planning.split import split_text
from gpubalance.render.report.subject import Subject
from gpubalance.render.report.table import Cell, Column, Table, make
from gpubalance.results.plan import Plan

_DEVICE = Column("device", "device", "text")


def tables(subject: Subject) -> tuple[Table, ...]:
    """None of a result that is no plan."""
    plan = subject.plan
    if plan is None:
        return ()
    return (*_shares(plan), *_predicted(plan), *_rounds(plan), *_left_out(plan), *_learning_rate(plan))


def _shares(plan: Plan) -> tuple[Table, ...]:
    columns = (
        _DEVICE,
        Column("batch", "batch"),
        Column("micro_batch", "micro-batch"),
        Column("limit", "up to"),
        Column("compute_s", "compute", "ms"),
        Column("utilisation", "used", "%"),
        Column("binds", "bound by", "text"),
    )
    rows: list[list[Cell]] = [
        [plan.devices[s.device].label, s.batch, s.micro_batch, s.limit, s.compute_s, s.utilisation, s.binds]
        for s in plan.shares
    ]
    return make("shares", "The plan's shares", columns, rows, "Up to: the largest micro-batch that is planned with.")


def _predicted(plan: Plan) -> tuple[Table, ...]:
    columns = (
        Column("split", "split", "text"),
        Column("batches", "batches", "text"),
        Column("step_time_s", "step time", "ms"),
        Column("throughput", "throughput", "samples/s"),
        Column("sync_s", "sync", "ms"),
        Column("imbalance", "imbalance"),
        Column("speedup_over_even", "× over even"),
        Column("solo_sum", "solo sum", "samples/s"),
        Column("scaling_efficiency", "of the solo sum", "%"),
    )
    p = plan.predicted
    split = split_text(plan.batches, plan.micro_batches)
    rows: list[list[Cell]] = [
        [
            *("chosen", split, p.step_time_s, p.throughput, p.sync_s, p.imbalance),
            *(p.speedup_over_even, p.solo_sum, p.scaling_efficiency),
        ]
    ]
    if p.even is not None:
        even = split_text(p.even.batches)
        rows.append(["even", even, p.even.step_time_s, p.even.throughput, None, None, None, None, None])
    return make("predicted", "Predicted", columns, rows)


def _rounds(plan: Plan) -> tuple[Table, ...]:
    columns = (
        Column("round", "round"),
        Column("batches", "batches", "text"),
        Column("outcome", "outcome", "text"),
        Column("predicted_throughput", "predicted", "samples/s"),
        Column("throughput", "measured", "samples/s"),
        Column("step_time_s", "step time", "ms"),
        Column("sync_s", "sync", "ms"),
        Column("imbalance", "imbalance"),
    )
    rows = []
    for tried in plan.balance.rounds if plan.balance else ():
        m = tried.measured
        found = [None] * 4 if m is None else [m.throughput.median, m.step_time_s.median, m.sync_s, m.imbalance]
        split = split_text(tried.batches, tried.micro_batches)
        outcome = "out of memory" if tried.outcome == "oom" else tried.outcome
        rows.append([tried.number, split, outcome, tried.predicted_throughput, *found])
    return make("rounds", "The search's rounds: each split that was tried", columns, rows)


def _left_out(plan: Plan) -> tuple[Table, ...]:
    columns = (_DEVICE, Column("gain", "throughput would change by", "%"))
    rows = [[plan.devices[one.device].label, one.gain] for one in plan.left_out]
    return make("left_out", "Devices without samples", columns, rows)


def _learning_rate(plan: Plan) -> tuple[Table, ...]:
    rate = plan.learning_rate
    columns = (
        Column("from_batch", "from global batch"),
        Column("to_batch", "to global batch"),
        Column("linear", "times, with SGD"),
        Column("square_root", "times, with Adam"),
    )
    rows = [] if rate is None else [[rate.from_batch, rate.to_batch, rate.linear, rate.square_root]]
    return make("learning_rate", "Learning rate", columns, rows)
