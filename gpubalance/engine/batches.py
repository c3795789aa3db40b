"""Brings a dataset of samples or batches into global batches, and drops its iterators where nobody waits for it."""

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

    Whoever drops one waits for tf.data's autotuning thread, which sleeps for as long as the iterator has lived, a
    minute at most, and in every other case wakes too early to see that it should end (TensorFlow's Model::OptimizeLoop
    looks for what is only set after it has been woken).
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
    threading.Thread(target=_drop, args=(_over,), name="drops iterators", daemon=True).start()


def _drop(over: SimpleQueue[list[Any]]) -> None:
    while True:
        over.get().clear()


def regrouped(data: tf.data.Dataset, model: Any, global_batch: int) -> tf.data.Dataset:
    """The dataset, batched or not, in batches of that size; the last one may be smaller.

    Open batches stay as they are. All are prefetched, which TensorFlow itself does only under some options.
    """
    if not is_batched(data, model):
        data = data.batch(global_batch, num_parallel_calls=tf.data.AUTOTUNE)
    elif not are_open(data, model) and {shape[0] for shape in _shapes(data)} != {global_batch}:
        data = data.rebatch(global_batch)
    return data.prefetch(tf.data.AUTOTUNE)


def joined(data: tf.data.Dataset, global_batch: int) -> tf.data.Dataset:
    """Open batches, regrouped into that size, each padded with zeros to its longest sample.

    They serve to measure, not to train: what a user pads with, and whether a mask hides it, is unknown.
    """
    return data.unbatch().padded_batch(global_batch).prefetch(tf.data.AUTOTUNE)


def are_open(data: tf.data.Dataset, model: Any) -> bool:
    """Whether it has open batches, which may differ in more than the number of samples, as padded sentences do."""
    open_shapes = any(shape.rank is None or None in shape[1:] for shape in _shapes(data))
    return is_batched(data, model) and open_shapes


def is_batched(data: tf.data.Dataset, model: Any) -> bool:
    """Whether it has batches: if all parts have the same first dimension, or, in doubt, by the rank of model inputs."""
    shapes = [shape for shape in _shapes(data) if shape.rank is not None]
    if any(shape.rank == 0 for shape in shapes):
        return False
    first = {shape[0] for shape in shapes}
    inputs = getattr(model, "inputs", None) if getattr(model, "built", False) else None
    if first == {None} or len(first) > 1 or not inputs:
        return len(first) <= 1
    return bool(shapes[0].rank >= min(len(given.shape) for given in inputs))


def _shapes(data: tf.data.Dataset) -> list[tf.TensorShape]:
    """The shape of each part, of unknown rank if TensorFlow does not say."""
    specs = [getattr(spec, "shape", None) for spec in tf.nest.flatten(data.element_spec)]
    return [tf.TensorShape(None) if shape is None else shape for shape in specs]
