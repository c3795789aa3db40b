"""Where a session's batches come from: they lie on the devices, or a pipeline makes them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import wait
from typing import Any

from gpubalance.engine import data
from gpubalance.engine.feed import Dispatched, Feed
from gpubalance.engine.replicas import Replicas
from gpubalance.results.timing import Prefetched
from gpubalance.settings.batch_split import BatchSplit

# If a pipeline's batches differ in shape, a timing is the mean over at least this many.
UNLIKE_BATCHES = 7
# Batches come in bursts: from a parallel map, a file, a rebatch. So a timing of a pipeline alone
# has several.
_LEAST_PULLED = 4
_LEAST_PULLED_S = 0.5


class Supply:
    """The batches of one split at a time: another's would take memory that is being measured.

    `cycle` is the number of steps until each batch has come once, if they differ in shape.
    """

    def __init__(self, replicas: Replicas, source: data.Source) -> None:
        self.source = source
        self.feed = Feed(replicas, BatchSplit((1,) * replicas.count))
        self.is_held = False
        self.cycle = 1
        self._batches: Iterator[Any] | None = None
        # A size, and batches of it
        self._prefetched: tuple[int, Iterator[Any]] | None = None

    def has(self, split: BatchSplit, *, held: bool) -> bool:
        """Whether it gives batches of this split, which are held on the devices or not."""
        return self._batches is not None and (split, held) == (
            self.feed.split,
            self.is_held,
        )

    def begin(self, split: BatchSplit) -> None:
        """Forgets the batches of the split before."""
        self.drop()
        self._prefetched = None
        self.feed.split = split

    def drop(self) -> None:
        """Drops the split's batches. The pipeline is the user's, and can't be read by two."""
        wait(self.feed.stop())
        self._batches = None

    def hold(self, memory_bytes: Sequence[int]) -> None:
        """Puts batches for the split on the devices, which have so much memory in all."""
        batches = data.held(self.feed, self.source, memory_bytes)
        self.is_held = True
        self.cycle = len(batches) if self.source.shapes_differ else 1
        self._batches = itertools.cycle(batches)

    def stream(self) -> None:
        """Takes batches for the split from the pipeline from now on."""
        self.is_held = False
        self.cycle = UNLIKE_BATCHES if self.source.shapes_differ else 1
        self._batches = self.source.stream(self.feed.split.global_batch)

    def next(self) -> tuple[Dispatched, float]:
        """The next batch, and the seconds that the host waited for it."""
        assert self._batches is not None  # noqa: S101  (`hold` or `stream` comes first)
        asked_s = time.perf_counter()
        if self.is_held:
            dispatched = next(self._batches)
        else:
            _, dispatched = self.feed.take(self._batches)
            self.feed.look_ahead(self._batches)
        return dispatched, time.perf_counter() - asked_s

    def pull(self, global_batch: int) -> Prefetched:
        """Takes some batches of that size from the pipeline, as fast as they come."""
        if self._prefetched is None or self._prefetched[0] != global_batch:
            self._prefetched = global_batch, self.source.stream(global_batch)
        _, batches = self._prefetched
        began_s = time.perf_counter()
        began_cpu_s = time.process_time()
        count = 0
        while count < _LEAST_PULLED or time.perf_counter() - began_s < _LEAST_PULLED_S:
            next(batches)
            count += 1
        cpu_s = time.process_time() - began_cpu_s
        return Prefetched(
            batches=count, seconds=time.perf_counter() - began_s, cpu_s=cpu_s
        )
