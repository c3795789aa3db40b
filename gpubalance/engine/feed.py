"""Deals global batches out in the split's proportion, and brings them to the devices in time.

A batch is read; *arranged*: its shares are decided; *copied*: cut and brought to the devices. Then
it is *dispatched*. To *deal* a batch is to arrange and copy it in the caller's thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import tensorflow as tf

from gpubalance.engine.datasets import cleaned, samples_of
from gpubalance.engine.iterators import Reader
from gpubalance.engine.keras_patches import called_flat
from gpubalance.engine.replicas import Replicas
from gpubalance.errors import BadInput
from gpubalance.settings.batch_split import BatchSplit, proportional_split

# Batches on their way to the devices while a step trains on another one
AHEAD = 2
AT_ONCE = 1 + AHEAD  # batches on the devices at once in training
_KEPT_PARTS = 100  # `_Parts`, of the numbers of samples that came last


class PartWeights(NamedTuple):
    """How much a replica's parts count in the mean loss of the global batch.

    16 of 64 samples count 0.25. The three are dispatched as a vector, float64 [3]. The batch
    weights of all replicas sum to 1.
    """

    batch: Any
    first_micro_batch: Any
    other_micro_batch: Any  # each one but the first


@dataclass(frozen=True, eq=False)
class Layout:
    """What batches share that differ only in their number of samples or in lengths.

    `signature` has a TensorSpec for each tensor, with None for sizes that differ. `cut` is a
    function that gives each replica its part. `like` describes structure, dtypes and ranks. When a
    batch differs in another size, the batches after it have a wider layout. A batch that was
    dispatched before keeps its own, so that all processes trace for the same batch.
    """

    like: str
    signature: Any
    cut: Any


@dataclass(frozen=True)
class Dispatched:
    """A global batch, dispatched.

    `values` has the samples and the `PartWeights` of each replica of this process, on its device. A
    batch with too few samples to be dispatched is `replicated`: each replica has all of it.
    `is_usual`: it is not `replicated`, and has as many samples as most batches of the call for the
    same purpose (to train, test or predict), as far as is known. `shapes` are equal for batches
    that differ only in their number of samples.
    """

    values: tuple[tuple[Any, Any], ...]
    layout: Layout
    shares: BatchSplit  # of all replicas; all samples for each if `replicated`
    samples: int  # of the global batch
    replicated: bool
    is_usual: bool
    shapes: Any


# A batch as it was read, and its copy to the devices
_Read: TypeAlias = tuple[Any, Future[Dispatched]]


class _HowToDeal(NamedTuple):
    """The options with which a batch is dealt: see `Feed`."""

    split: BatchSplit
    minimum: int
    purpose: str  # see `Feed.purpose`


class _Parts(NamedTuple):
    """How so many samples are divided, with the tensors for this process's replicas."""

    shares: BatchSplit
    replicated: bool
    own_places: Any  # int32 [replicas, 2]
    weights: Any  # float64 [replicas, 3]


@dataclass(eq=False)
class _Ahead:
    """The next batches of an iterator, and the thread that asks for them."""

    reader: Reader
    # The next one first. None: the iterator had ended, or `stop` came first.
    batches: deque[Future[_Read | None]] = field(default_factory=deque)


class Feed:
    """Takes global batches from iterators; threads bring the next ones to the devices.

    The devices are those of this process. A share has at least `minimum` samples, as the model's
    rules ask; a batch that is too small for that is `replicated`. tf.data could copy to several
    devices itself. But it gives each device the next whole batch in turn, so it can't divide an
    incomplete last batch or follow a split that changes.
    """

    # training/steps.py sets both.
    minimum = 1
    purpose = "train"  # what the next batches are for: `train`, `test` or `predict`

    def __init__(self, replicas: Replicas, split: BatchSplit) -> None:
        self.names = replicas.names
        self.own_slice = replicas.own_slice
        self.split = split
        # Of the batch that was arranged last, for an out-of-memory error
        self.last_shares: BatchSplit | None = None
        # By purpose, in this call: the split's global batch, and the samples of most batches
        self._usual: dict[str, tuple[int, int]] = {}
        # Kept for the next batch of that size: making its two constants takes 0.1 ms.
        self._parts = lru_cache(_KEPT_PARTS)(self._parts_of)
        self._like_of_shapes: dict[Any, str] = {}  # of all `_shapes` that have come
        self._layout_of_like: dict[str, Layout] = {}  # the widest so far
        # In a cluster one thread asks all iterators, so that all processes arrange batches in the
        # same order. Else each has its own, and none waits for another's next batch.
        self._in_cluster = replicas.cluster is not None
        self._reader: Reader | None = None
        # A token of the present call: what was read for an earlier call is dropped.
        self._call = object()
        self._arranging = threading.Lock()
        # A copy to a GPU waits for all that is queued there when it begins. If it began only after
        # the copy before it had ended, it would wait for one more step. So several threads copy.
        self._copies = ThreadPoolExecutor(AHEAD, "copies")
        # Training and validation each have an iterator, and training continues after validation.
        self._ahead: WeakKeyDictionary[Iterator[Any], _Ahead] = WeakKeyDictionary()

    def begin(self) -> None:
        """Begins a call, such as `fit`: its own batches show what is usual."""
        self._usual.clear()

    def take(self, iterator: Iterator[Any]) -> tuple[Any, Dispatched]:
        """The next global batch, as it came and dispatched. Raises StopIteration."""
        self.look_ahead(iterator, 1)
        taken = self._ahead[iterator].batches.popleft().result()
        if taken is None:
            raise StopIteration
        batch, copying = taken
        return batch, copying.result()

    def look_ahead(self, iterator: Iterator[Any], batches: int = AHEAD) -> None:
        """Asks for more global batches, until so many are on their way to the devices."""
        ahead = self._ahead.get(iterator)
        if ahead is None:
            ahead = self._ahead[iterator] = _Ahead(self._reader_for_new_iterator())
        while len(ahead.batches) < batches:
            # The split is taken now, not when the thread reads: else a new split would begin with
            # another batch in each process of a cluster.
            read = partial(self._next, iterator, self._call, self._how_to_deal)
            ahead.batches.append(ahead.reader.submit(read))

    def stop(self) -> list[Future[Any]]:
        """Forgets what is on its way; returns what is still asked of an iterator.

        It waits for copies to the devices, but not for an iterator: a user's generator may hang.
        What the iterator gives then is dropped.
        """
        with self._arranging:
            self._call = object()
        asked: list[Future[Any]] = []
        for ahead in self._ahead.values():
            asked += [future for future in ahead.batches if not future.cancel()]
        self._copies.shutdown()
        self._copies = ThreadPoolExecutor(AHEAD, "copies")
        self._ahead.clear()
        self._reader = None
        return asked

    def _reader_for_new_iterator(self) -> Reader:
        """A new reader; in a cluster the one of all iterators."""
        if not self._in_cluster:
            return Reader()
        if self._reader is None:
            self._reader = Reader()
        return self._reader

    def _next(
        self, iterator: Iterator[Any], call: object, how: _HowToDeal
    ) -> _Read | None:
        """Reads and arranges the next batch; a thread of `_copies` then copies it.

        None at the iterator's end, or if `call` is over.
        """
        batch = cleaned(next(iterator, None))
        if batch is None:
            return None
        with self._arranging:
            if call is not self._call:
                return None
            return batch, self._copies.submit(self._arrange(batch, how))

    def deal(self, batch: Any) -> Dispatched:
        """Deals a batch in order, the first samples to the first replica.

        Raises BadInput if it can't be dispatched.
        """
        with self._arranging:
            copy = self._arrange(batch, self._how_to_deal)
        return copy()

    def deal_all(self, batches: Iterable[Any]) -> list[Dispatched]:
        """Deals batches that are trained on again and again, all in the layout of the widest.

        Else each change from one layout to another would trace the step anew.
        """
        dispatched = [self.deal(batch) for batch in batches]
        widest = []
        for one in dispatched:
            widest.append(replace(one, layout=self._layout_of_like[one.layout.like]))
        return widest

    @property
    def _how_to_deal(self) -> _HowToDeal:
        """For the batches that are asked for from now on."""
        return _HowToDeal(self.split, self.minimum, self.purpose)

    def _arrange(self, batch: Any, how: _HowToDeal) -> Callable[[], Dispatched]:
        """Decides a batch's shares and layout; returns a function that copies it to the devices."""
        samples = samples_of(batch)
        if not samples:
            raise BadInput(
                "the dataset produced an empty batch",
                remedy="remove empty batches from the dataset",
            )
        parts = self._parts(samples, how.split, how.minimum)
        shares = parts.shares
        replicated = parts.replicated
        shapes = _shapes(batch)
        layout = self._layout_of(batch, shapes)
        self.last_shares = shares
        is_usual = not replicated and samples == self._note_usual_samples(how, samples)

        def copy() -> Dispatched:
            values = called_flat(layout.cut, (batch, parts.own_places, parts.weights))
            return Dispatched(
                values, layout, shares, samples, replicated, is_usual, shapes
            )

        return copy

    def _parts_of(self, samples: int, split: BatchSplit, minimum: int) -> _Parts:
        devices = len(split.batches)
        replicated = samples < minimum * devices
        if replicated:
            shares = BatchSplit((samples,) * devices)
            places = [(0, samples)] * devices
        else:
            shares = _shares(samples, split, minimum)
            places = _places(shares)
        weights = _weights(shares, samples, replicated=replicated)
        with tf.device("/CPU:0"):
            return _Parts(
                shares,
                replicated,
                tf.constant(places[self.own_slice], tf.int32),
                tf.constant(weights[self.own_slice], tf.float64),
            )

    def _note_usual_samples(self, how: _HowToDeal, samples: int) -> int:
        """Notes a batch's samples; returns how many most batches for the same purpose have.

        Those of the first batch; of a later larger one if it has the split's global batch, as the
        first of shuffled batches may be incomplete. It begins anew for a split with another global
        batch; a split that changes in training keeps its own.
        """
        global_batch, usual = self._usual.get(how.purpose, (0, 0))
        is_new = global_batch != how.split.global_batch
        if is_new or usual < samples == global_batch:
            usual = samples
            self._usual[how.purpose] = how.split.global_batch, usual
        return usual

    def _layout_of(self, batch: Any, shapes: Any) -> Layout:
        """The layout for a batch with these `_shapes`."""
        if shapes not in self._like_of_shapes:
            like = str(tf.nest.map_structure(_dtype_and_rank, batch))
            self._like_of_shapes[shapes] = like
            self._widen(like, batch)
        return self._layout_of_like[self._like_of_shapes[shapes]]

    def _widen(self, like: str, batch: Any) -> None:
        """Gives batches that are `like` this one a layout that takes this one, too."""
        wider = tf.nest.map_structure(open_spec, batch)
        if like in self._layout_of_like:
            signature = self._layout_of_like[like].signature
            wider = tf.nest.map_structure(_either, signature, wider)
            if wider == signature:
                return
        # One call for each batch: separate operations would cost a step more than the cutting
        # itself.
        places = tf.TensorSpec((len(self.names), 2), tf.int32)
        weights = tf.TensorSpec((len(self.names), len(PartWeights._fields)), tf.float64)
        cut = tf.function(self._on_devices, autograph=False).get_concrete_function(
            wider, places, weights
        )
        self._layout_of_like[like] = Layout(like, wider, cut)

    def _on_devices(self, batch: Any, places: Any, weights: Any) -> tuple[Any, ...]:
        parts = []
        for number, name in enumerate(self.names):
            # Else the whole global batch would go to each GPU and be cut there.
            with tf.device("/CPU:0"):
                part = _cut(batch, places[number]), weights[number]
            with tf.device(name):
                parts.append(tf.nest.map_structure(tf.identity, part))
        return tuple(parts)


def open_spec(tensor: Any) -> tf.TensorSpec:
    """The TensorSpec of tensors that differ from this one only in their number of samples."""
    return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)


def _dtype_and_rank(tensor: Any) -> tuple[str, int]:
    return tensor.dtype.name, tensor.shape.rank


def _shares(samples: int, split: BatchSplit, minimum: int) -> BatchSplit:
    """Divides samples in the split's proportion; each share has `minimum` samples or more."""
    batches = proportional_split(samples, split.batches, minimum)
    if not split.accumulates:
        return BatchSplit(batches)
    return BatchSplit(batches, tuple(map(min, batches, split.micro_batches)))


def _places(shares: BatchSplit) -> list[tuple[int, int]]:
    """Where each replica's samples begin and end in the global batch."""
    ends = accumulate(shares.batches)
    return [(end - batch, end) for batch, end in zip(shares.batches, ends, strict=True)]


def _cut(batch: Any, place: Any) -> Any:
    begin, end = tf.unstack(place)
    return tf.nest.map_structure(lambda tensor: tensor[begin:end], batch)


def _weights(
    shares: BatchSplit, samples: int, *, replicated: bool
) -> list[PartWeights]:
    """Each replica's weights.

    Of a `replicated` batch only the first replica counts: else every replica would add the same
    rows to an embedding's gradient, which optimizers square before they add.
    """
    if replicated:
        own = [float(replica == 0) for replica in range(len(shares.batches))]
        return [PartWeights(weight, weight, weight) for weight in own]
    weights = []
    for batch, first, other in zip(
        shares.batches, shares.first_micro_batches, shares.micro_batches, strict=True
    ):
        weights.append(PartWeights(batch / samples, first / samples, other / samples))
    return weights


def _shapes(batch: Any) -> Any:
    """A key that is cheap to make: equal if only the numbers of samples differ."""
    if isinstance(batch, dict):
        return tuple((name, _shapes(batch[name])) for name in sorted(batch))
    if isinstance(batch, tuple | list):
        return (type(batch), *map(_shapes, batch))
    return batch.dtype, tuple(batch.shape[1:])


def _either(one: tf.TensorSpec, other: tf.TensorSpec) -> tf.TensorSpec:
    pairs = zip(one.shape, other.shape, strict=True)
    sizes = [size if size == other_size else None for size, other_size in pairs]
    return tf.TensorSpec(sizes, one.dtype)
