"""The work of a step: what is the same at every batch, so that it is measured once."""

from __future__ import annotations

from functools import partial

from gpubalance.errors import (
    DeadlinePassed,
    EnvironmentFault,
    OutOfMemory,
    PartialResult,
)
from gpubalance.jobs.probe.attempts import Attempts
from gpubalance.numbers.stats import median
from gpubalance.results.timing import Timing
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.record import Record, Seconds
from gpubalance.workers.messages import CountFlops, Flops
from gpubalance.workers.worker import Worker

# An update takes the same time at every batch. It is measured at the largest batch whose steps are
# no longer than this: in shorter steps a GPU may wait for its host.
_SHORT_S = 0.1
_UPDATES = 7
# Stamped steps have their own trace, whose first steps are slower
_SLOW_FIRST_STEPS = 2


class Work(Record):
    """Floating-point operations of a step for a sample, seconds of an update; None if unknown."""

    step_flops: float | None
    update_s: Seconds | None = None


def work_of_step(attempts: Attempts) -> Work | None:
    """The work as the living worker gives it, or as it was kept before; None without either."""
    return attempts.bench.get_or_make("work", Work, partial(_measured, attempts))


def _measured(attempts: Attempts) -> Work | None:
    bench = attempts.bench
    if not bench.party.alive or not attempts.points:
        return None
    short = []
    for batch, point in attempts.points.items():
        if point.step_time_s.median <= _SHORT_S:
            short.append(batch)
    batch = max(short, default=min(attempts.points))
    try:
        with bench.worker() as worker:
            flops = worker.ask(CountFlops(), Flops)
            update_s = _measure_update(worker, batch)
        return Work(step_flops=flops.step, update_s=update_s)
    except (PartialResult, DeadlinePassed, OutOfMemory, EnvironmentFault):
        bench.party.drop()
        return None


def _measure_update(worker: Worker, batch: int) -> float:
    """The median seconds of a weight update. Raises what `Worker.measure` does."""
    count = _SLOW_FIRST_STEPS + _UPDATES
    updates_s = []
    for reply in worker.measure(BatchSplit((batch,)), at_least=count, stamped=True):
        if isinstance(reply, Timing) and reply.counts:
            updates_s.append(sum(reply.update_s or ()))
    return median(updates_s[_SLOW_FIRST_STEPS:])
