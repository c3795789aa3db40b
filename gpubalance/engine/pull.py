"""Measures how fast batches come from a pipeline when nothing is done with them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from gpubalance.results.pulled import Pulled

# Batches come in bursts: from a parallel map, a file, a rebatch. So a timing has several.
_LEAST_BATCHES = 4
_LEAST_S = 0.5


def timed_pull(batches: Iterator[Any]) -> Pulled:
    """Takes batches for one timing."""
    began, cpu_s, count = time.perf_counter(), time.process_time(), 0
    while count < _LEAST_BATCHES or time.perf_counter() - began < _LEAST_S:
        next(batches)
        count += 1
    return Pulled(batches=count, seconds=time.perf_counter() - began, cpu_s=time.process_time() - cpu_s)
