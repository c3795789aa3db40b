"""Samples for a step, on the devices or from a pipeline on the host, and seeded random samples that fit a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gpubalance.engine.feed import Dealt, Feed
from gpubalance.engine.iterators import Batches
from gpubalance.engine.labels import Target, as_outputs
from gpubalance.results.pulled import Remedy

_POOL = 512  # samples that the host's pipeline repeats
_HELD_PART = 0.01


class Source:
    """Where samples come from. By default their number is unknown, and all have one shape."""

    held_at_most = 1  # batches at a time on the devices

    def make(self, count: int, *, salt: int = 0) -> Any:
        """`count` samples as NumPy arrays: (inputs, labels) or (inputs, labels, sample weights)."""
        raise NotImplementedError

    def stream(self, global_batch: int) -> Iterator[Any]:
        """Batches of `global_batch` samples from a pipeline on the host, without end."""
        raise NotImplementedError

    def longest(self, count: int) -> Any:
        """`count` samples, beginning with the largest in shape of those that were looked at."""
        return self.make(count)

    @property
    def differs(self) -> bool:
        """Whether the batches that were looked at differ in more than the number of samples."""
        return False

    @property
    def samples(self) -> int | None:
        """The number of samples, None if unknown; at most so many if it has not been read to its end."""
        return None

    def joined_from(self, global_batch: int) -> int | None:
        """The number of samples in the user's own batches if they are regrouped for this size; None if they stay."""
        del global_batch
        return None

    def usual_remedies(self) -> tuple[Remedy, ...]:
        """What usually makes such data faster, at which lines of the user's code."""
        return ()


class Samples(Source):
    """Random samples for a model: (inputs in its own structure, labels in that of its outputs)."""

    def __init__(self, model: Any, targets: Sequence[Target], *, seed: int) -> None:
        # In the structure of a call, with tuples for lists, which tf.data would stack.
        is_sequential = isinstance(model, keras.Sequential)
        self._inputs = model.inputs[0] if is_sequential else keras.tree.lists_to_tuples(model.input)
        self._model = model
        self._targets = targets
        self._seed = seed
        embeddings = [one for one in model._flatten_layers() if isinstance(one, keras.layers.Embedding)]
        self._vocabulary = min((int(one.input_dim) for one in embeddings), default=2)  # inputs must be below it

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
        labels = [values(one.shape, tf.int64 if one.classes else tf.float32, one.classes) for one in self._targets]
        return inputs, as_outputs(self._model, labels)

    def stream(self, global_batch: int) -> Iterator[Any]:
        """Some samples again and again."""
        endless = tf.data.Dataset.from_tensor_slices(self.make(_POOL)).repeat()
        return Batches(endless.batch(global_batch).prefetch(tf.data.AUTOTUNE))


def held(feed: Feed, source: Source, memory_bytes: Sequence[int]) -> list[Dealt]:
    """Some global batches, dealt to the devices, where they stay.

    Of a user's own samples up to seven, for several lengths and labels; fewer if they would take over a hundredth of a
    device's memory, as they must not lower the batch limit; but at least three, as a pipeline keeps two. The number is
    odd, as every second step is stamped: of an even number the stamped steps would only ever see the same half.
    """
    count = source.held_at_most
    if count > 1:
        sizes = [batch * bytes_of(source.make(1)) for batch in feed.batches[feed.here]]
        most = min(int(_HELD_PART * memory / size) for memory, size in zip(memory_bytes, sizes, strict=True))
        count = next(fewer for fewer in (7, 5, 3) if fewer <= max(3, most))
    return [feed.deal(as_tensors(source.make(sum(feed.batches), salt=number))) for number in range(count)]


def as_tensors(batch: Any) -> Any:
    """The batch as tensors in the host's memory, as a pipeline gives them."""
    with tf.device("/CPU:0"):
        return tf.nest.map_structure(tf.convert_to_tensor, batch)


def bytes_of(batch: Any) -> int:
    """The bytes of a batch's NumPy arrays."""
    return sum(int(values.nbytes) for values in tf.nest.flatten(batch))
