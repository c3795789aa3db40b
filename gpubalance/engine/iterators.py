"""Iterators of datasets, which end without keeping anyone waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from queue import SimpleQueue
from typing import Any

import tensorflow as tf

from gpubalance.engine import background

# Each in a list, so that the thread that empties it drops the iterator, whoever else has the list.
_over: SimpleQueue[list[Any]] = SimpleQueue()


class Batches(Iterator[Any]):
    """What `iter(dataset)` gives. When it is no longer needed, another thread drops the iterator.

    Whoever drops one waits for tf.data's autotuning thread, which sleeps for as long as the
    iterator has lived, a minute at most, and in every other case wakes too early to see that it
    should end (TensorFlow's Model::OptimizeLoop looks for what is only set after it has been
    woken).
    """

    def __init__(self, dataset: tf.data.Dataset) -> None:
        _start_dropping()
        self._held: list[Any] = []
        self._held.append(iter(dataset))

    def __next__(self) -> Any:
        return next(self._held[0])

    def __del__(self, drop: Callable[[list[Any]], None] = _over.put) -> None:
        drop(self._held)


@cache
def _start_dropping() -> None:
    background.start(_drop_all, _over, name="drops iterators")


def _drop_all(over: SimpleQueue[list[Any]]) -> None:
    # Each in a thread of its own: whoever drops one also waits for the batch that is being made,
    # for ever if the user's code hangs.
    while True:
        background.start(_drop, over.get(), name="drops an iterator")


def _drop(held: list[Any]) -> None:
    with background.work():
        held.clear()
