"""Iterators of datasets, which end without keeping anyone waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import cache
from queue import SimpleQueue
from typing import Any

import tensorflow as tf

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
    # It ends with the program, which need not wait for it: what it still has to drop ends too.
    threading.Thread(
        target=_drop, args=(_over,), name="drops iterators", daemon=True
    ).start()


def _drop(over: SimpleQueue[list[Any]]) -> None:
    # Each in a thread of its own: whoever drops one also waits for the batch that is being made,
    # for ever if the user's code hangs.
    while True:
        threading.Thread(target=over.get().clear, daemon=True).start()
