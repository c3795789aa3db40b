"""Keeps track of which workers are warm, and for what: a warm one needs only a few steps with another split."""

from __future__ import annotations

from functools import partial

from gpubalance.jobs.measure.series import Series
from gpubalance.workers.party import Party


class Warmth:
    """Warms up the workers of a party of one, each once: a warm one only settles with other splits.

    Splits in one piece and in micro-batches have different traces of the step, each with stamps and without. XLA
    compiles one for every batch, so with it nothing is warm in advance.
    """

    def __init__(self, party: Party, *, xla: bool) -> None:
        self._party = party
        self._xla = xla
        self._warm: dict[int, set[bool]] = {}  # by the number of a started worker: which of its traces are warm

    def warm_up(self, series: Series) -> None:
        """Trains with a series' split until its steps are steady. Raises what `Series.warm_up` does."""
        if not self._party.alive:
            self._party.start()
        traced = self._warm.get(self._party.started, set())
        if self._xla or not traced:
            self._party.ask(series.warm_up)
        else:
            self._party.ask(partial(series.settle, stamped=series.split.accumulates not in traced))
        self._warm[self._party.started] = {*traced, series.split.accumulates}
