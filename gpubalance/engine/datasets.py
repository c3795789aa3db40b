"""Datasets as they come: whether they have batches, in which size they come again, and iterators
that end soon.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import cache
from queue import SimpleQueue
from typing import Any

import tensorflow as tf

from gpubalance.errors import BadInput

# Each in a list, so that the thread that empties it drops the iterator, whoever else has the list.
_over: SimpleQueue[list[Any]] = SimpleQueue()


def cleaned(batch: Any) -> Any:
    """The batch without missing parts at its end: Keras gives an empty Optional for labels or
    weights it lacks.

    Each sample has its own weight.
    """
    if not isinstance(batch, tuple):
        return batch
    there = [
        part
        for part in batch
        if part is not None and not isinstance(part, tf.experimental.Optional)
    ]
    return _weight_each(
        tuple(there) if len(there) == len(batch) or batch[len(there) - 1] is there[-1] else batch
    )


def _weight_each(batch: Any) -> Any:
    """The batch with a weight for each sample where it has one for all of them, which Keras takes
    as well.
    """
    if not _has_one_weight(batch):
        return batch
    inputs, labels, weights = batch
    count = tf.shape(tf.nest.flatten(inputs)[0])[:1]
    return (
        inputs,
        labels,
        tf.nest.map_structure(lambda one: tf.fill(count, one) if _is_number(one) else one, weights),
    )


def _has_one_weight(batch: Any) -> bool:
    """Whether a batch, or a dataset's element_spec, has a sample weight that is one number."""
    return (
        isinstance(batch, tuple)
        and len(batch) == 3
        and any(map(_is_number, tf.nest.flatten(batch[2])))
    )


def _is_number(part: Any) -> bool:
    return getattr(getattr(part, "shape", None), "rank", None) == 0


def samples_of(batch: Any) -> int:
    """The number of samples in a batch. Raises BadInput if its parts disagree or are not dense
    tensors.
    """
    parts = tf.nest.flatten(batch)
    if not all(isinstance(part, tf.Tensor) for part in parts):
        odd = next(type(part).__name__ for part in parts if not isinstance(part, tf.Tensor))
        raise BadInput(
            f"the data has a {odd} in it, which can't be dealt out", remedy="make it a dense tensor"
        )
    sizes = {int(values.shape[0]) for values in parts}
    if len(sizes) != 1:
        raise BadInput(
            f"the data's parts have different numbers of samples in a batch: {sorted(sizes)}",
            remedy="each input, output and sample_weight needs one entry a sample",
        )
    return sizes.pop()


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
    threading.Thread(target=_drop, args=(_over,), name="drops iterators", daemon=True).start()


def _drop(over: SimpleQueue[list[Any]]) -> None:
    while True:
        over.get().clear()


def regrouped(data: tf.data.Dataset, model: Any, global_batch: int) -> tf.data.Dataset:
    """The dataset, batched or not, in batches of that size; the last one may be smaller.

    Open batches stay as they are. All are prefetched, which TensorFlow itself does only under some
    options.
    """
    if not is_batched(data, model):
        return data.batch(global_batch, num_parallel_calls=tf.data.AUTOTUNE).prefetch(
            tf.data.AUTOTUNE
        )
    data = _with_weights(data)
    if not are_open(data, model) and {shape[0] for shape in _shapes_of(data.element_spec)} != {
        global_batch
    }:
        data = data.rebatch(global_batch)
    return data.prefetch(tf.data.AUTOTUNE)


def joined(data: tf.data.Dataset, global_batch: int) -> tf.data.Dataset:
    """Open batches, regrouped into that size, each padded with zeros to its longest sample.

    They serve to measure, not to train: what a user pads with, and whether a mask hides it, is
    unknown.
    """
    return _with_weights(data).unbatch().padded_batch(global_batch).prefetch(tf.data.AUTOTUNE)


def _with_weights(data: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset of batches, in which each sample has its own weight."""
    return (
        data.map(lambda *parts: _weight_each(parts)) if _has_one_weight(data.element_spec) else data
    )


def are_open(data: tf.data.Dataset, model: Any) -> bool:
    """Whether it has open batches, which may differ in more than the number of samples, as padded
    sentences do.
    """
    open_shapes = any(
        shape.rank is None or None in shape[1:] for shape in _shapes_of(data.element_spec)
    )
    return is_batched(data, model) and open_shapes


def is_batched(data: tf.data.Dataset, model: Any) -> bool:
    """Whether it has batches: if all parts have the same first dimension, or, in doubt, by the rank
    of model inputs.

    A sample weight that is one number may be that of a batch. Where neither an open first dimension
    nor a model's inputs tell, it is a sample's.
    """
    has_one_weight = _has_one_weight(data.element_spec)
    parts = data.element_spec[:2] if has_one_weight else data.element_spec
    shapes = [shape for shape in _shapes_of(parts) if shape.rank is not None]
    if any(shape.rank == 0 for shape in shapes):
        return False
    first = {shape[0] for shape in shapes}
    if first <= {None}:
        return True
    if len(first) > 1:
        return False
    inputs = getattr(model, "inputs", None) if getattr(model, "built", False) else None
    if not inputs:
        return not has_one_weight
    return bool(shapes[0].rank >= min(len(given.shape) for given in inputs))


def _shapes_of(element_spec: Any) -> list[tf.TensorShape]:
    """The shape of each part, of unknown rank if TensorFlow does not say."""
    specs = [getattr(spec, "shape", None) for spec in tf.nest.flatten(element_spec)]
    return [tf.TensorShape(None) if shape is None else shape for shape in specs]
