"""Measures a user's input pipeline alone: what it gives at most, whether it binds, and what usually
helps then.
"""

from __future__ import annotations

import os

from gpubalance.jobs.events import Doing, Watch
from gpubalance.jobs.measure.figures import throughput_of
from gpubalance.jobs.measure.stopping import PRECISE_ENOUGH
from gpubalance.numbers.stats import half_width
from gpubalance.results.common import Throughput
from gpubalance.results.run import InputPipeline
from gpubalance.results.timing import Pulled
from gpubalance.workers.messages import Pull, PulledAll
from gpubalance.workers.party import Party
from gpubalance.workers.worker import Worker

WARM_UP_S = 2.0  # meanwhile tf.data tunes its parallelism
ROUND_S = 2.0  # or shorter, as windows are
_LEAST_PULLS = 5
_ROUNDS = 5
_CLEARLY = 0.98


def measure_pipeline(
    party: Party, global_batch: int, watch: Watch, round_s: float = ROUND_S
) -> InputPipeline:
    """The pipeline of a party's data without a model behind it, held against nothing yet.

    Warms it up and measures until its rate is known within ± 1 %, or for five rounds. Raises
    BadInput as `run` does.
    """
    watch(Doing(f"measuring the input pipeline alone, in batches of {global_batch}"))
    return party.ask(lambda worker: _measured(worker, global_batch, round_s))


def held_against(
    pipeline: InputPipeline, held: Throughput | None, solo_sum: float | None
) -> InputPipeline:
    """The record. `held` is what the split gives with batches on the devices, `solo_sum` what these
    give alone.
    """
    alone = pipeline.alone
    most = alone.ci95[1] if alone.ci95 else alone.median
    rates = held.median if held else None, solo_sum
    # By more than noise.
    binds = any(rate and most < rate and alone.median < _CLEARLY * rate for rate in rates)
    return pipeline.model_copy(
        update={"held": held, "binds": binds, "remedies": pipeline.remedies if binds else ()}
    )


def _measured(worker: Worker, global_batch: int, round_s: float) -> InputPipeline:
    list(worker.replies(Pull(global_batch=global_batch, seconds=WARM_UP_S), Pulled, PulledAll))
    pulls, times_s, about = list[Pulled](), list[float](), PulledAll()
    for _ in range(_ROUNDS):
        asked = Pull(
            global_batch=global_batch, seconds=round_s, at_least=max(1, _LEAST_PULLS - len(pulls))
        )
        for reply in worker.replies(asked, Pulled, PulledAll):
            if isinstance(reply, Pulled):
                pulls.append(reply)
            else:
                about = reply
        times_s = [one.seconds / one.batches for one in pulls]
        known = half_width(times_s)
        if known is not None and known <= PRECISE_ENOUGH:
            break
    cpu_s, seconds = sum(one.cpu_s for one in pulls), sum(one.seconds for one in pulls)
    return InputPipeline(
        alone=throughput_of(global_batch, times_s),
        processor_use=cpu_s / seconds / (os.cpu_count() or 1),
        held=None,
        binds=False,
        remedies=about.remedies,
        joined_from=about.joined_from,
    )
