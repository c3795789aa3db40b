"""Measures a user's input pipeline alone: what it gives at most, whether it binds, and what makes it faster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpubalance.errors import BadInput
from gpubalance.jobs.events import Doing, Watch
from gpubalance.numbers.stats import half_width, interval95, median
from gpubalance.numbers.units import format_rate
from gpubalance.results.common import Throughput
from gpubalance.results.pulled import Change, Mend, Pulled
from gpubalance.results.run import Pipeline, Remedy
from gpubalance.workers.party import Party
from gpubalance.workers.worker import Worker

WARM_UP_S = 2.0  # meanwhile tf.data tunes its parallelism
ROUND_S = 2.0  # or shorter, as windows are
_LEAST_PULLS = 5
_ROUNDS = 5
_PRECISE_ENOUGH = 0.01
_LONGEST_FILL_S = 30.0  # to fill a cache that is tried
_CLEARLY = 0.98
_HELPS = 1.05


@dataclass
class Alone:
    """The pipeline of a party's data at a global batch, without a model behind it."""

    party: Party
    global_batch: int
    watch: Watch
    round_s: float = ROUND_S
    pulls: list[Pulled] = field(default_factory=list)
    mends: tuple[Mend, ...] = ()
    joined_from: int | None = None  # samples in the user's own batches, if they were regrouped

    def measure(self) -> None:
        """Warms the pipeline up and measures until its rate is known within ± 1 %, or for five rounds."""
        self.watch(Doing(f"measuring the input pipeline alone, in batches of {self.global_batch}"))
        self.pulls = self.party.ask(lambda worker: self._measured(worker, WARM_UP_S, None))

    @property
    def throughput(self) -> Throughput:
        """The pipeline's samples per second, as in a run."""
        return _throughput(self.pulls, self.global_batch)

    def result(self, held: Throughput | None, solo_sum: float | None, remedies: tuple[Remedy, ...] = ()) -> Pipeline:
        """The record. `held` is what the split gives with batches on the devices, `solo_sum` what these give alone."""
        seconds = sum(one.seconds for one in self.pulls)
        return Pipeline(
            alone=self.throughput,
            processor_use=sum(one.cpu_s for one in self.pulls) / seconds / (os.cpu_count() or 1),
            held=held,
            binds=self._is_below(held.median if held else None) or self._is_below(solo_sum),
            remedies=remedies,
            joined_from=self.joined_from,
        )

    def _is_below(self, rate: float | None) -> bool:
        """Whether the pipeline's rate is clearly below this one, by more than noise."""
        found = self.throughput
        return rate is not None and _ends(found)[1] < rate and found.median < _CLEARLY * rate

    def tried(self) -> tuple[Remedy, ...]:
        """Tries the changes and returns those that made it clearly faster, the best first."""
        found = [remedy for mend in self.mends if (remedy := self._try(mend)) is not None]
        return tuple(sorted(found, key=lambda remedy: -remedy.throughput.median))

    def _try(self, mend: Mend) -> Remedy | None:
        rate = self.throughput.median
        warm_up_s = WARM_UP_S + 1.2 * mend.samples / rate
        if warm_up_s > _LONGEST_FILL_S:
            return None
        self.watch(Doing(f"trying the input pipeline with {mend.what}"))
        try:
            pulls = self.party.ask(lambda worker: self._measured(worker, warm_up_s, mend.change))
        except BadInput as error:  # from code that was not made for the change
            self.watch(Doing(f"that does not work: {error.message}"))
            return None
        found = _throughput(pulls, self.global_batch)
        self.watch(Doing(f"it gives {format_rate(found.median)} samples/s, {format_rate(rate)} as it is"))
        helps = found.median > _HELPS * rate and _ends(found)[0] > _ends(self.throughput)[1]
        return Remedy(where=mend.where, what=mend.what, throughput=found) if helps else None

    def _measured(self, worker: Worker, warm_up_s: float, change: Change | None) -> list[Pulled]:
        list(self._pulled(worker, warm_up_s, 1, change))
        pulls: list[Pulled] = []
        for _ in range(_ROUNDS):
            pulls += self._pulled(worker, self.round_s, max(1, _LEAST_PULLS - len(pulls)), change)
            known = half_width([one.seconds / one.batches for one in pulls])
            if known is not None and known <= _PRECISE_ENOUGH:
                break
        return pulls

    def _pulled(self, worker: Worker, seconds: float, at_least: int, change: Change | None) -> Iterator[Pulled]:
        for reply in worker.pull(self.global_batch, seconds=seconds, at_least=at_least, change=change):
            if isinstance(reply, Pulled):
                yield reply
            elif change is None:
                self.mends, self.joined_from = reply.mends, reply.joined_from


def ceiling(
    party: Party, global_batch: int, watch: Watch, *, held: Throughput | None = None, solo_sum: float | None
) -> Pipeline:
    """The record of a party's pipeline, with what helps if it binds; see `Alone`. Raises BadInput as `run` does."""
    alone = Alone(party, global_batch, watch)
    alone.measure()
    found = alone.result(held, solo_sum)
    return found.model_copy(update={"remedies": alone.tried()}) if found.binds else found


def _ends(rate: Throughput) -> tuple[float, float]:
    return rate.ci95 or (rate.median, rate.median)


def _throughput(pulls: list[Pulled], global_batch: int) -> Throughput:
    times = [one.seconds / one.batches for one in pulls]
    known = interval95(times)
    ci95 = (global_batch / known[1], global_batch / known[0]) if known else None
    return Throughput(median=global_batch / median(times), ci95=ci95)
