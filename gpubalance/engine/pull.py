"""How fast batches come from a pipeline when nothing is done with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from gpubalance.engine.user_data import UserData
from gpubalance.results.pulled import Change, Pulled

# Batches come in bursts: of a parallel map, of a file, of a rebatch. A timing has several.
_LEAST_BATCHES = 4
_LEAST_S = 0.5


class Pulls:
    """Takes batches from the user's data as fast as they come; it goes on where the last call has ended."""

    def __init__(self, own: UserData, goes_on: Callable[[bool], bool]) -> None:
        """`goes_on` is what all processes of a cluster go by: each pulls whole batches, as it does in training."""
        self._own = own
        self._goes_on = goes_on
        self._what: tuple[int, Change | None] | None = None
        self._batches: Iterator[Any] = iter(())

    def forget(self) -> None:
        """Lets the pipeline go: another takes its place."""
        self._what, self._batches = None, iter(())

    def take(self, global_batch: int, *, seconds: float, at_least: int, change: Change | None) -> Iterator[Pulled]:
        """Timings, until `seconds` are over and `at_least` are given."""
        if self._what != (global_batch, change):
            source = self._own if change is None else self._own.changed(change)
            self._what, self._batches = (global_batch, change), source.stream(global_batch)
        end, given = time.perf_counter() + seconds, 0
        while given < at_least or self._goes_on(time.perf_counter() < end):
            yield _timed(self._batches)
            given += 1


def _timed(batches: Iterator[Any]) -> Pulled:
    """Takes some, for as long as a timing is."""
    began, cpu_s, count = time.perf_counter(), time.process_time(), 0
    while count < _LEAST_BATCHES or time.perf_counter() - began < _LEAST_S:
        next(batches)
        count += 1
    return Pulled(batches=count, seconds=time.perf_counter() - began, cpu_s=time.process_time() - cpu_s)
