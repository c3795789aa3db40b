"""Measures a user's input pipeline alone: what it gives at most, whether it binds, and what usually helps then."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from gpubalance.jobs.events import Doing, Watch
from gpubalance.jobs.measure.timings import throughput_of
from gpubalance.jobs.measure.warnings import PRECISE_ENOUGH
from gpubalance.numbers.stats import half_width
from gpubalance.results.common import Throughput
from gpubalance.results.run import Pipeline
from gpubalance.results.timing import Pulled, Remedy
from gpubalance.workers.messages import Pull, PulledAll
from gpubalance.workers.party import Party
from gpubalance.workers.worker import Worker

WARM_UP_S = 2.0  # meanwhile tf.data tunes its parallelism
ROUND_S = 2.0  # or shorter, as windows are
_LEAST_PULLS = 5
_ROUNDS = 5
_CLEARLY = 0.98


@dataclass
class Ceiling:
    """The pipeline of a party's data at a global batch, without a model behind it.

    `joined_from` is how many samples the user's own batches have, if they were regrouped.
    """

    global_batch: int
    pulls: list[Pulled] = field(default_factory=list)
    remedies: tuple[Remedy, ...] = ()
    joined_from: int | None = None

    @classmethod
    def measured(cls, party: Party, global_batch: int, watch: Watch, round_s: float = ROUND_S) -> Ceiling:
        """Warms the pipeline up and measures until its rate is known within ± 1 %, or for five rounds.

        Raises BadInput as `run` does.
        """
        watch(Doing(f"measuring the input pipeline alone, in batches of {global_batch}"))
        alone = cls(global_batch)
        party.ask(lambda worker: alone._measure(worker, round_s))
        return alone

    @property
    def throughput(self) -> Throughput:
        """The pipeline's samples per second, as in a run."""
        return throughput_of(self.global_batch, self._times_s)

    @property
    def _times_s(self) -> list[float]:
        return [one.seconds / one.batches for one in self.pulls]

    def result(self, held: Throughput | None, solo_sum: float | None) -> Pipeline:
        """The record. `held` is what the split gives with batches on the devices, `solo_sum` what these give alone."""
        cpu_s, seconds = sum(one.cpu_s for one in self.pulls), sum(one.seconds for one in self.pulls)
        binds = self._is_below(held.median if held else None) or self._is_below(solo_sum)
        return Pipeline(
            alone=self.throughput,
            processor_use=cpu_s / seconds / (os.cpu_count() or 1),
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

    def _measure(self, worker: Worker, round_s: float) -> None:
        self._pull(worker, WARM_UP_S, 1)
        self.pulls = []
        for _ in range(_ROUNDS):
            self._pull(worker, round_s, max(1, _LEAST_PULLS - len(self.pulls)))
            known = half_width(self._times_s)
            if known is not None and known <= PRECISE_ENOUGH:
                break

    def _pull(self, worker: Worker, seconds: float, at_least: int) -> None:
        asked = Pull(global_batch=self.global_batch, seconds=seconds, at_least=at_least)
        for reply in worker.replies(asked, Pulled, PulledAll):
            if isinstance(reply, Pulled):
                self.pulls.append(reply)
            else:
                self.remedies, self.joined_from = reply.remedies, reply.joined_from
