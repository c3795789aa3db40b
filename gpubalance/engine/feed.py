"""Brings a dataset of samples or batches into global batches, and deals those out in the split's proportion."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from queue import SimpleQueue
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from gpubalance.engine.place import Place
from gpubalance.errors import BadInput
from gpubalance.settings.shares import Shares, proportional_split

WEIGHTS = 3  # of a replica in a step: see `_weights`
# Batches that are on their way while a step trains on another. A copy to a GPU waits for all that is queued there when
# it begins: so one batch is copied during the step before it, and the next one is read and cut meanwhile.
_AHEAD = 2
AT_ONCE = 1 + _AHEAD  # batches on the devices in training
# Each in a list, so that the thread that empties it drops the iterator, whoever else has the list.
_over: SimpleQueue[list[Any]] = SimpleQueue()


@dataclass(frozen=True, eq=False)
class Layout:
    """What batches share that differ only in their number of samples or in lengths.

    `signature` has a TensorSpec for each tensor, open where they differ; `cut` is a function that gives each replica
    its part. `like` tells the structure, dtypes and ranks. When a batch differs in another size, those after it have a
    wider layout; one that was dealt before keeps its own, so that all processes trace for the same batch.
    """

    like: str
    signature: Any
    cut: Any


@dataclass(frozen=True)
class Dealt:
    """A global batch, dealt out: `values` has the samples and the weights of each replica of this process, there.

    A batch with too few samples to be dealt out is `whole` on each replica.
    """

    values: tuple[tuple[Any, Any], ...]
    layout: Layout
    shares: Shares
    samples: int
    whole: bool


class Feed:
    """Takes global batches from iterators, and brings the next ones to the devices ahead of time, in a thread.

    The devices are those of the place that this process has. A share has at least `least` samples, as a verdict says;
    a batch that is too small for that is `whole` on each device. tf.data's own copies to several devices give each one
    batch after another in turns, whatever its size, so they can't divide a last batch or follow a split that changes.
    """

    least = 1

    def __init__(self, place: Place, split: Shares) -> None:
        self.names, self.here = place.names, place.here
        self.split = split
        self.dealing: Shares | None = None  # of the last batch that began to be dealt out
        self._likes: dict[Any, str] = {}  # of all shapes that have come
        self._layouts: dict[str, Layout] = {}  # the widest so far, by what batches are like
        # One thread asks all iterators: several may be of the same generator, which can't be asked by two at once.
        self._thread = ThreadPoolExecutor(1, "batches")
        # Training and validation each have an iterator, and training continues after validation.
        self._ahead: WeakKeyDictionary[Iterator[Any], deque[Future[Any]]] = WeakKeyDictionary()

    def take(self, iterator: Iterator[Any]) -> tuple[Any, Dealt]:
        """The next global batch, as it came and dealt out. Raises StopIteration."""
        self.look_ahead(iterator, 1)
        found = self._ahead[iterator].popleft().result()
        if found is None:
            raise StopIteration
        return found  # type: ignore[no-any-return]

    def look_ahead(self, iterator: Iterator[Any], batches: int = _AHEAD) -> None:
        """Has so many of the next global batches brought to the devices, while these compute."""
        ahead = self._ahead.setdefault(iterator, deque())
        while len(ahead) < batches:
            # How it is dealt is decided now: what changes meanwhile would reach each process at another batch.
            ahead.append(self._thread.submit(self._next, iterator, self.split, self.least))

    def stop(self) -> None:
        """Forgets what is on its way, and leaves all iterators alone from now on."""
        on_their_way = [future for ahead in self._ahead.values() for future in ahead if not future.cancel()]
        wait(on_their_way)
        self._ahead.clear()

    def _next(self, iterator: Iterator[Any], split: Shares, least: int) -> tuple[Any, Dealt] | None:
        batch = cleaned(next(iterator, None))
        return None if batch is None else (batch, self._deal(batch, split, least))

    def deal(self, batch: Any) -> Dealt:
        """Deals a batch in order, the first samples to the first replica. Raises BadInput if it can't be dealt out."""
        return self._deal(batch, self.split, self.least)

    def _deal(self, batch: Any, split: Shares, least: int) -> Dealt:
        samples = samples_of(batch)
        if not samples:
            raise BadInput("the data gave a batch without samples", remedy="leave it out of the dataset")
        devices = len(split.batches)
        whole = samples < least * devices
        if whole:
            shares, ends = Shares((samples,) * devices), (samples,) * devices
        else:
            batches = proportional_split(samples, split.batches, least)
            shares = Shares(batches, tuple(map(min, batches, split.micro_batches)) if split.accumulates else ())
            ends = tuple(accumulate(batches))
        places = [(end - batch, end) for batch, end in zip(shares.batches, ends, strict=True)]
        with tf.device("/CPU:0"):
            here = tf.constant(places[self.here], tf.int32)
            weights = tf.constant(_weights(shares, samples, whole=whole)[self.here], tf.float64)
        layout, self.dealing = self._layout_of(batch), shares
        return Dealt(layout.cut(batch, here, weights), layout, shares, samples, whole)

    def _layout_of(self, batch: Any) -> Layout:
        shapes = _shapes(batch)
        if shapes not in self._likes:
            like = str(tf.nest.map_structure(lambda one: (one.dtype.name, one.shape.rank), batch))
            self._likes[shapes] = like
            self._widen(like, batch)
        return self._layouts[self._likes[shapes]]

    def _widen(self, like: str, batch: Any) -> None:
        """Makes the layout of such batches one of this batch too."""
        found = self._layouts.get(like)
        own = tf.nest.map_structure(lambda one: tf.TensorSpec([None, *one.shape[1:]], one.dtype), batch)
        wider = own if found is None else tf.nest.map_structure(_either, found.signature, own)
        if found is not None and wider == found.signature:
            return
        # One call for each batch: separate operations would cost a step more than the cutting itself.
        places = tf.TensorSpec((len(self.names), 2), tf.int32)
        weights = tf.TensorSpec((len(self.names), WEIGHTS), tf.float64)
        cut = tf.function(self._on_devices, autograph=False).get_concrete_function(wider, places, weights)
        self._layouts[like] = Layout(like, wider, cut)

    def _on_devices(self, batch: Any, places: Any, weights: Any) -> tuple[Any, ...]:
        parts = []
        for number, name in enumerate(self.names):
            with tf.device("/CPU:0"):  # else the whole global batch would go to each GPU and be cut there
                begin, end = tf.unstack(places[number])
                part = tf.nest.map_structure(lambda one, at=slice(begin, end): one[at], batch), weights[number]
            with tf.device(name):
                parts.append(tf.nest.map_structure(tf.identity, part))
        return tuple(parts)


def _weights(shares: Shares, samples: int, *, whole: bool) -> list[tuple[float, ...]]:
    """Each replica's weight in the global mean loss, then those of its first micro-batch and of each other one.

    Those of all replicas sum to 1. For a `whole` batch only the first replica counts: else every replica would add the
    same rows to an embedding's gradient, which optimizers square before they add.
    """
    if whole:
        return [(float(not replica),) * WEIGHTS for replica in range(len(shares.batches))]
    sizes = zip(shares.batches, shares.first_micro_batches, shares.micro_batches, strict=True)
    return [tuple(size / samples for size in of_replica) for of_replica in sizes]


def cleaned(batch: Any) -> Any:
    """The batch without missing parts at its end: Keras gives an empty Optional for labels or weights it lacks.

    Each sample has its own weight.
    """
    if not isinstance(batch, tuple):
        return batch
    there = [part for part in batch if part is not None and not isinstance(part, tf.experimental.Optional)]
    return _weight_each(tuple(there) if len(there) == len(batch) or batch[len(there) - 1] is there[-1] else batch)


def _weight_each(batch: Any) -> Any:
    """The batch with a weight for each sample where it has one for all of them, which Keras takes as well."""
    if not _has_one_weight(batch):
        return batch
    inputs, labels, weights = batch
    count = tf.shape(tf.nest.flatten(inputs)[0])[:1]
    return inputs, labels, tf.nest.map_structure(lambda one: tf.fill(count, one) if _is_number(one) else one, weights)


def _has_one_weight(batch: Any) -> bool:
    """Whether a batch, or a dataset's element_spec, has a sample weight that is one number."""
    return isinstance(batch, tuple) and len(batch) == 3 and any(map(_is_number, tf.nest.flatten(batch[2])))


def _is_number(part: Any) -> bool:
    return getattr(getattr(part, "shape", None), "rank", None) == 0


def samples_of(batch: Any) -> int:
    """The number of samples in a batch. Raises BadInput if its parts disagree or are not dense tensors."""
    parts = tf.nest.flatten(batch)
    if not all(isinstance(part, tf.Tensor) for part in parts):
        odd = next(type(part).__name__ for part in parts if not isinstance(part, tf.Tensor))
        raise BadInput(f"the data has a {odd} in it, which can't be dealt out", remedy="make it a dense tensor")
    sizes = {int(values.shape[0]) for values in parts}
    if len(sizes) != 1:
        raise BadInput(
            f"the data's parts have different numbers of samples in a batch: {sorted(sizes)}",
            remedy="each input, output and sample_weight needs one entry a sample",
        )
    return sizes.pop()


def _shapes(batch: Any) -> Any:
    """A key that is cheap to make, equal for batches of the same structure, dtypes and shapes but for their samples."""
    if isinstance(batch, dict):
        return tuple((name, _shapes(batch[name])) for name in sorted(batch))
    if isinstance(batch, tuple | list):
        return (type(batch), *map(_shapes, batch))
    return batch.dtype, tuple(batch.shape[1:])


def _either(one: tf.TensorSpec, other: tf.TensorSpec) -> tf.TensorSpec:
    sizes = [a if a == b else None for a, b in zip(one.shape, other.shape, strict=True)]
    return tf.TensorSpec(sizes, one.dtype)


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
        return data.batch(global_batch, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    data = _with_weights(data)
    if not are_open(data, model) and {shape[0] for shape in _shapes_of(data.element_spec)} != {global_batch}:
        data = data.rebatch(global_batch)
    return data.prefetch(tf.data.AUTOTUNE)


def joined(data: tf.data.Dataset, global_batch: int) -> tf.data.Dataset:
    """Open batches, regrouped into that size, each padded with zeros to its longest sample.

    They serve to measure, not to train: what a user pads with, and whether a mask hides it, is unknown.
    """
    return _with_weights(data).unbatch().padded_batch(global_batch).prefetch(tf.data.AUTOTUNE)


def _with_weights(data: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset of batches, in which each sample has its own weight."""
    return data.map(lambda *parts: _weight_each(parts)) if _has_one_weight(data.element_spec) else data


def are_open(data: tf.data.Dataset, model: Any) -> bool:
    """Whether it has open batches, which may differ in more than the number of samples, as padded sentences do."""
    open_shapes = any(shape.rank is None or None in shape[1:] for shape in _shapes_of(data.element_spec))
    return is_batched(data, model) and open_shapes


def is_batched(data: tf.data.Dataset, model: Any) -> bool:
    """Whether it has batches: if all parts have the same first dimension, or, in doubt, by the rank of model inputs.

    A sample weight that is one number may be that of a batch. Where neither an open first dimension nor a model's
    inputs tell, it is a sample's.
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
