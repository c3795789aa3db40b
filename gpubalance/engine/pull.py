"""Measures how fast batches come from a pipeline when nothing is done with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from gpubalance.engine.data import Source
from gpubalance.results.pulled import Pulled

# Batches come in bursts: from a parallel map, a file, a rebatch. So a timing has several.
_LEAST_BATCHES = 4
_LEAST_S = 0.5


class Pulls:
    """Takes batches from the user's data as fast as they come; each call continues where the last one ended."""

    def __init__(self, own: Source, goes_on: Callable[[bool], bool]) -> None:
        """`goes_on` gives all processes of a cluster the same answer: each pulls whole batches, as in training."""
        self._own = own
        self._goes_on = goes_on
        self._global_batch = 0
        self._batches: Iterator[Any] = iter(())

    def forget(self) -> None:
        """Lets the pipeline go, before another takes its place."""
        self._global_batch, self._batches = 0, iter(())

    def take(self, global_batch: int, *, seconds: float, at_least: int) -> Iterator[Pulled]:
        """Yields timings until `seconds` are over and `at_least` timings are given."""
        if self._global_batch != global_batch:
            self._global_batch, self._batches = global_batch, self._own.stream(global_batch)
        end, given = time.perf_counter() + seconds, 0
        while given < at_least or self._goes_on(time.perf_counter() < end):
            yield _timed(self._batches)
            given += 1


def _timed(batches: Iterator[Any]) -> Pulled:
    """Takes batches for one timing."""
    began, cpu_s, count = time.perf_counter(), time.process_time(), 0
    while count < _LEAST_BATCHES or time.perf_counter() - began < _LEAST_S:
        next(batches)
        count += 1
    return Pulled(batches=count, seconds=time.perf_counter() - began, cpu_s=time.process_time() - cpu_s)
