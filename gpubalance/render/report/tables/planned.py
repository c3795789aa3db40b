"""A plan's numbers: each device's share, what is predicted, the splits that were tried, the learning rate."""

from __future__ import annotations

from collections.abc import Iterator

from gpubalance.render.report.subject import Subject
from gpubalance.render.report.table import Table
from gpubalance.render.report.tables.rows import Row, fields, table
from gpubalance.results.plan import Plan


def tables(subject: Subject) -> tuple[Table, ...]:
    """A plan's tables; none if the result is no plan."""
    plan = subject.plan
    if plan is None:
        return ()
    names = ("batch", "micro_batch", "limit", "compute_s", "update_s", "utilisation", "binds")
    shares: list[Row] = [{"device": plan.devices[s.device].label, **fields(s, *names)} for s in plan.shares]
    left_out: list[Row] = [{"device": plan.devices[one.device].label, "gain": one.gain} for one in plan.left_out]
    rates = [plan.learning_rate] if plan.learning_rate is not None else []
    learning: list[Row] = [
        {**fields(rate, "from_batch", "to_batch", "linear", "square_root"), "measured_factor": rate.measured}
        for rate in rates
    ]
    note = "Up to: the largest micro-batch that is planned with."
    return (
        *table("shares", "The plan's shares", shares, note),
        *table("predicted", "Predicted", _predicted(plan)),
        *table("goodput", "Goodput", _goodput(plan), "Goodput is throughput times what a sample is worth."),
        *table("by_global_batch", "The fastest split by global batch", _by_global_batch(plan), long=True),
        *table(
            "rounds", "The search's rounds: each split that was tried", _rounds(plan), labels={"throughput": "measured"}
        ),
        *table("left_out", "Devices without samples", left_out),
        *table("learning_rate", "Learning rate", learning),
    )


def _predicted(plan: Plan) -> Iterator[Row]:
    names = ("sync_s", "imbalance", "speedup_over_even", "solo_sum", "scaling_efficiency")
    p = plan.predicted
    yield {
        "split": "chosen",
        "batches": str(plan.split),
        "global_batch": plan.global_batch,
        **fields(p, "step_time_s", "throughput", *names),
    }
    others = {
        "even": p.even,
        "largest even": p.largest_even,
        "the best split of its global batch": p.best_at_largest_even,
    }
    for name, other in others.items():
        if other is not None:
            row: Row = {"split": name, "batches": str(other.split), "global_batch": other.split.global_batch}
            yield {**row, **fields(other, "step_time_s", "throughput"), **fields(None, *names)}


def _goodput(plan: Plan) -> Iterator[Row]:
    for one in plan.predicted.by_goodput:
        yield {
            "of": one.of,
            "batches": "/".join(map(str, one.batches)),
            **fields(one, "global_batch", "throughput", "efficiency", "goodput"),
        }


def _by_global_batch(plan: Plan) -> Iterator[Row]:
    for one in plan.predicted.by_global_batch:
        yield {
            "batches": str(one.split),
            "global_batch": one.split.global_batch,
            **fields(one, "step_time_s", "throughput"),
        }


def _rounds(plan: Plan) -> Iterator[Row]:
    for tried in plan.balance.rounds if plan.balance else ():
        measured = tried.measured
        yield {
            "round": tried.number,
            "batches": str(tried.split),
            "outcome": "out of memory" if tried.outcome == "oom" else tried.outcome,
            "predicted_throughput": tried.predicted_throughput,
            "throughput": measured.throughput.median if measured else None,
            "step_time_s": measured.step_time_s.median if measured else None,
            **fields(measured, "sync_s", "imbalance"),
        }
