"""Measures a user's input pipeline alone: what it gives at most, and whether it binds."""

from __future__ import annotations

import os

from gpubalance.jobs.events import Doing, Watch
from gpubalance.jobs.measure.figures import throughput_of
from gpubalance.jobs.measure.stopping import PRECISE_ENOUGH
from gpubalance.numbers.stats import half_width
from gpubalance.results.common import Throughput
from gpubalance.results.run import InputPipeline
from gpubalance.results.timing import Prefetched
from gpubalance.workers.messages import PrefetchedAll, Pull
from gpubalance.workers.worker import Worker
from gpubalance.workers.worker_group import WorkerGroup

USUAL_PIPELINE_S = 6.0  # of measuring it alone
WARM_UP_S = 2.0  # meanwhile tf.data tunes its parallelism
_ROUND_S = 2.0
_LEAST_PULLS = 5
_ROUNDS = 5
_CLEARLY = 0.98


def measure_input_pipeline(
    worker_group: WorkerGroup,
    global_batch: int,
    watch: Watch,
    duration_s: float | None = None,
) -> InputPipeline:
    """The pipeline of a worker group's data without a model behind it, held against nothing yet.

    Warms it up and measures rounds of 2 s, or of `duration_s` if that is shorter: until its rate is
    known within ± 1 %, five at most. Raises BadInput as `run` does.
    """
    round_s = min(_ROUND_S, duration_s or _ROUND_S)
    watch(Doing(f"measuring the input pipeline alone, in batches of {global_batch}"))
    with worker_group.worker() as worker:
        return _measured(worker, global_batch, round_s)


def held_against(
    pipeline: InputPipeline, held: Throughput | None, solo_sum: float | None
) -> InputPipeline:
    """The record, with whether it binds.

    `held` is what the split gives with batches on the devices, `solo_sum` what these give alone.
    """
    binds = _is_below(solo_sum, pipeline.alone)
    if held is not None:
        binds = binds or _is_below(held.median, pipeline.alone)
    remedies = pipeline.remedies if binds else ()
    return pipeline.model_copy(
        update={"held": held, "binds": binds, "remedies": remedies}
    )


def _is_below(rate: float | None, alone: Throughput) -> bool:
    """Whether a pipeline gives less than that alone, by more than noise."""
    maximum = alone.ci95[1] if alone.ci95 else alone.median
    return rate is not None and maximum < rate and alone.median < _CLEARLY * rate


def _measured(worker: Worker, global_batch: int, round_s: float) -> InputPipeline:
    list(
        worker.replies(
            Pull(global_batch=global_batch, seconds=WARM_UP_S),
            Prefetched,
            PrefetchedAll,
        )
    )
    pulls: list[Prefetched] = []
    times_s: list[float] = []
    about = PrefetchedAll()
    for _ in range(_ROUNDS):
        at_least = max(1, _LEAST_PULLS - len(pulls))
        asked = Pull(global_batch=global_batch, seconds=round_s, at_least=at_least)
        *prefetched, about = worker.replies(asked, Prefetched, PrefetchedAll)
        pulls += prefetched
        times_s = [pull.seconds / pull.batches for pull in pulls]
        known = half_width(times_s)
        if known is not None and known <= PRECISE_ENOUGH:
            break
    cpu_s = sum(pull.cpu_s for pull in pulls)
    seconds = sum(pull.seconds for pull in pulls)
    return InputPipeline(
        alone=throughput_of(global_batch, times_s),
        processor_use=cpu_s / seconds / (os.cpu_count() or 1),
        held=None,
        binds=False,
        remedies=about.remedies,
        joined_from=about.joined_from,
    )
