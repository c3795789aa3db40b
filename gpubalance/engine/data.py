"""Samples for a step, on the devices or from a pipeline on the host, and seeded random samples that fit a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from gpubalance.engine.feed import Feed
from gpubalance.engine.losses import Loss

_POOL = 512  # samples that the host's pipeline repeats
_HELD_PART = 0.01


class Source(Protocol):
    """Where samples come from."""

    def make(self, count: int, *, salt: int = 0) -> Any:
        """`count` samples as NumPy arrays: (inputs, labels) or (inputs, labels, sample weights)."""

    def spec(self) -> Any:
        """A TensorSpec for each part of a batch; dimensions that may differ are open."""


class Samples:
    """Random samples for a model: (inputs in the model's own structure, labels as a tuple in the order of outputs)."""

    def __init__(self, model: Any, loss: Loss, *, seed: int) -> None:
        self._inputs = _input_structure(model)
        self._loss = loss
        self._seed = seed
        self._vocabulary = min(_vocabularies(model), default=2)

    def make(self, count: int, *, salt: int = 0) -> Any:
        """`count` samples as NumPy arrays; the same for the same seed and salt."""
        random = np.random.default_rng([self._seed, salt])

        def values(shape: Sequence[int], dtype: tf.DType, below: int) -> Any:
            """Integers from 0 to below `below`, booleans, or fractions from 0 to 1, as the dtype asks."""
            size = (count, *shape)
            if dtype.is_integer:
                return random.integers(0, below, size).astype(dtype.as_numpy_dtype)
            if dtype.is_bool:
                return random.integers(0, 2, size).astype(bool)
            return random.random(size, np.float32).astype(dtype.as_numpy_dtype)

        inputs = tf.nest.map_structure(
            lambda spec: values(spec.shape[1:], tf.as_dtype(spec.dtype), self._vocabulary), self._inputs
        )
        # int64, as TensorFlow keeps int32 in the host's memory and would copy it to a GPU in every step.
        labels = [values(one.shape, tf.int64 if one.classes else tf.float32, one.classes) for one in self._loss.targets]
        return inputs, tuple(labels)

    def spec(self) -> Any:
        """A TensorSpec for each part of a batch of any size."""
        return tf.nest.map_structure(lambda one: tf.TensorSpec([None, *one.shape[1:]], one.dtype), self.make(1))

    def dataset(self) -> tf.data.Dataset:
        """An endless stream of single samples."""
        return tf.data.Dataset.from_tensor_slices(self.make(_POOL)).repeat()


def _input_structure(model: Any) -> Any:
    """The model's symbolic inputs in the structure of a call, with tuples for lists, which tf.data would stack."""
    if isinstance(model, keras.Sequential):
        return model.inputs[0]
    return keras.tree.lists_to_tuples(model.input)


def _vocabularies(model: Any) -> Iterator[int]:
    """The vocabulary size of each embedding: integer inputs must be below it."""
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Embedding):
            yield int(layer.input_dim)


def element_spec(strategy: Any, samples: Source) -> Any:
    """The step's input signature, open in every replica's batch size, so that one trace serves every split."""
    none = tf.data.Dataset.from_generator(lambda: iter(()), output_signature=samples.spec())
    return strategy.distribute_datasets_from_function(lambda _: none).element_spec


def resident(
    strategy: Any, samples: Source, devices: Sequence[str], batches: Sequence[int], first: int = 0
) -> Iterator[Any]:
    """Endlessly the same batch, on the replicas' own devices; in a cluster `first` is this process's first replica."""
    values = []
    for replica, (device, batch) in enumerate(zip(devices, batches, strict=True), first):
        with tf.device(device):  # else the values would lie on CPU:0, and every step would copy them
            values.append(tf.nest.map_structure(tf.identity, samples.make(batch, salt=replica + 1)))
    data = distribute(strategy, _own_of(values, first))
    while True:
        yield data


def distribute(strategy: Any, make: Callable[[Any], Any]) -> Any:
    """Each replica's own values, as a step takes them; for a single replica the values themselves."""
    data = strategy.experimental_distribute_values_from_function(make)
    if strategy.num_replicas_in_sync > 1:
        return data
    return tf.nest.map_structure(lambda value: strategy.experimental_local_results(value)[0], data)


def streamed(strategy: Any, samples: Samples, batches: Sequence[int]) -> Iterator[Any]:
    """Batches from a pipeline on the host, prefetched to the devices, each replica's in its own size."""

    def pipeline(_: Any) -> tf.data.Dataset:
        return samples.dataset().batch(sum(batches)).rebatch(list(batches)).prefetch(tf.data.AUTOTUNE)

    # The stream never ends, so TensorFlow need not check for the next batch before each step, which costs time.
    strategy.extended.experimental_enable_get_next_as_optional = False
    return iter(strategy.distribute_datasets_from_function(pipeline))


def piped(strategy: Any, feed: Feed, batches: Iterable[Any]) -> Iterator[Any]:
    """Global batches from a user's own pipeline, dealt to the devices as in `split.fit`."""
    for batch in batches:
        yield distribute(strategy, _own_of(feed.deal(batch).values, feed.here.start))


def _own_of(values: Sequence[Any], first: int) -> Callable[[Any], Any]:
    return lambda context: values[context.replica_id_in_sync_group - first]


def held(strategy: Any, feed: Feed, samples: Source, memory_bytes: Sequence[int]) -> list[Any]:
    """Some global batches of a user's own samples, dealt to the devices, where they stay.

    Up to seven, for several lengths and labels; fewer if they would take over a hundredth of a device's memory, as they
    must not lower the batch limit; but at least three, as a pipeline keeps two. The number is odd, as every second step
    is stamped: of an even number the stamped steps would only ever see the same half.
    """
    sizes = [batch * bytes_of(samples.make(1)) for batch in feed.batches[feed.here]]
    most = min(int(_HELD_PART * memory / size) for memory, size in zip(memory_bytes, sizes, strict=True))
    count = next(count for count in (7, 5, 3) if count <= max(3, most))
    made = (as_tensors(samples.make(sum(feed.batches), salt=number)) for number in range(count))
    return [*piped(strategy, feed, made)]


def as_tensors(batch: Any) -> Any:
    """The batch as tensors in the host's memory, as a pipeline gives them."""
    with tf.device("/CPU:0"):
        return tf.nest.map_structure(tf.convert_to_tensor, batch)


def bytes_of(batch: Any) -> int:
    """The bytes of a batch's NumPy arrays."""
    return sum(int(values.nbytes) for values in tf.nest.flatten(batch))
