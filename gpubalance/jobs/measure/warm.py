"""Which workers are warm, and for what: a warm one needs only a few steps with another split."""

from __future__ import annotations

from gpubalance.jobs.measure.series import Series
from gpubalance.workers.party import Party


class Warmth:
    """Warms the workers of a party of one up, each once for splits in one piece and once for those in micro-batches.

    The two are other traces of the step. XLA compiles one for every batch: then nothing is warm before.
    """

    def __init__(self, party: Party, *, xla: bool) -> None:
        self._party = party
        self._xla = xla
        self._warm: set[tuple[int, bool]] = set()

    def warm_up(self, series: Series) -> None:
        """Trains with a series' split until its steps are as they will be. Raises what `Series.warm_up` does."""
        if not self._party.alive:
            self._party.start()
        warm = self._party.started, series.split.accumulates
        self._party.ask(series.settle if warm in self._warm and not self._xla else series.warm_up)
        self._warm.add(warm)
