"""Measures a user's input pipeline alone: what it gives at most, whether it binds, and what usually helps then."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpubalance.jobs.events import Doing, Watch
from gpubalance.jobs.measure.timings import throughput_of
from gpubalance.numbers.stats import half_width
from gpubalance.results.common import Throughput
from gpubalance.results.pulled import Pulled, Remedy
from gpubalance.results.run import Pipeline
from gpubalance.workers.party import Party
from gpubalance.workers.worker import Worker

WARM_UP_S = 2.0  # meanwhile tf.data tunes its parallelism
ROUND_S = 2.0  # or shorter, as windows are
_LEAST_PULLS = 5
_ROUNDS = 5
_PRECISE_ENOUGH = 0.01
_CLEARLY = 0.98


@dataclass
class Alone:
    """The pipeline of a party's data at a global batch, without a model behind it."""

    party: Party
    global_batch: int
    watch: Watch
    round_s: float = ROUND_S
    pulls: list[Pulled] = field(default_factory=list)
    remedies: tuple[Remedy, ...] = ()
    joined_from: int | None = None  # samples in the user's own batches, if they were regrouped

    def measure(self) -> None:
        """Warms the pipeline up and measures until its rate is known within ± 1 %, or for five rounds."""
        self.watch(Doing(f"measuring the input pipeline alone, in batches of {self.global_batch}"))
        self.pulls = self.party.ask(self._measured)

    @property
    def throughput(self) -> Throughput:
        """The pipeline's samples per second, as in a run."""
        return throughput_of(self.global_batch, [one.seconds / one.batches for one in self.pulls])

    def result(self, held: Throughput | None, solo_sum: float | None) -> Pipeline:
        """The record. `held` is what the split gives with batches on the devices, `solo_sum` what these give alone."""
        seconds = sum(one.seconds for one in self.pulls)
        binds = self._is_below(held.median if held else None) or self._is_below(solo_sum)
        return Pipeline(
            alone=self.throughput,
            processor_use=sum(one.cpu_s for one in self.pulls) / seconds / (os.cpu_count() or 1),
            held=held,
            binds=binds,
            remedies=self.remedies if binds else (),
            joined_from=self.joined_from,
        )

    def _is_below(self, rate: float | None) -> bool:
        """Whether the pipeline's rate is clearly below this one, by more than noise."""
        found = self.throughput
        most = found.ci95[1] if found.ci95 else found.median
        return rate is not None and most < rate and found.median < _CLEARLY * rate

    def _measured(self, worker: Worker) -> list[Pulled]:
        list(self._pulled(worker, WARM_UP_S, 1))
        pulls: list[Pulled] = []
        for _ in range(_ROUNDS):
            pulls += self._pulled(worker, self.round_s, max(1, _LEAST_PULLS - len(pulls)))
            known = half_width([one.seconds / one.batches for one in pulls])
            if known is not None and known <= _PRECISE_ENOUGH:
                break
        return pulls

    def _pulled(self, worker: Worker, seconds: float, at_least: int) -> Iterator[Pulled]:
        for reply in worker.pull(self.global_batch, seconds=seconds, at_least=at_least):
            if isinstance(reply, Pulled):
                yield reply
            else:
                self.remedies, self.joined_from = reply.remedies, reply.joined_from


def ceiling(
    party: Party, global_batch: int, watch: Watch, *, held: Throughput | None = None, solo_sum: float | None
) -> Pipeline:
    """The record of a party's pipeline; see `Alone`. Raises BadInput as `run` does."""
    alone = Alone(party, global_batch, watch)
    alone.measure()
    return alone.result(held, solo_sum)
