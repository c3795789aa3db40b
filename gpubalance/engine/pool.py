"""Holds the user's samples on the host, and makes batches of any size from them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import tensorflow as tf

from gpubalance.errors import BadInput

_MOST_BYTES = 1 << 30  # a larger batch repeats some samples
# The most seconds, in all, for reading more batches than are needed: a pipeline may be slow.
_SPARE_S = 10.0
# The part of all samples between the starts of two batches: the golden ratio spreads any number of
# them evenly.
_GOLDEN = 0.6180339887


class Pool:
    """Reads the user's own batches as needed; those that differ in shape are padded with zeros."""

    where: str  # what errors say that the samples come from

    def __init__(
        self, begin_epoch: Callable[[], Iterator[Any]], *, looks_at: int = 1
    ) -> None:
        """`begin_epoch` gives all batches once more; `looks_at` are read now, if that is quick."""
        self._begin_epoch = begin_epoch
        self._batches = begin_epoch()
        self._like: Any = None  # a batch, for its structure
        # Each one's arrays, of one sample, in that structure's order.
        self._samples: list[tuple[Any, ...]] = []
        self._sizes = Counter[int]()  # of the batches that were read
        self._shapes = set[Any]()
        self._bytes = 0
        self._ended = False
        self._spare_s = _SPARE_S
        self._read(1, 1, looks_at)

    def make(self, count: int, *, salt: int = 0) -> Any:
        """`count` samples as NumPy arrays, the `salt`th such batch; too few samples repeat.

        If batches differ in shape, each is equally likely to be in it. Raises BadInput for an empty
        dataset.
        """
        self._read(count, (salt + 1) * count)
        if not self._samples:
            remedy = "return a dataset with at least one global batch of samples"
            raise BadInput(f"{self.where}: the dataset is empty", remedy=remedy)
        start = salt * count
        if self.shapes_differ:
            start = int(salt * _GOLDEN % 1 * len(self._samples))
        return self._from(start, count)

    def longest(self, count: int) -> Any:
        """The same, beginning with the largest in shape of the samples that were looked at."""
        sizes = []
        for sample in self._samples:
            sizes.append(sum(values.nbytes for values in sample))
        return self._from(sizes.index(max(sizes)), count)

    @property
    def shapes_differ(self) -> bool:
        """Whether the batches read so far differ in more than the number of samples."""
        return len(self._shapes) > 1

    @property
    def usual_size(self) -> int:
        """The most frequent number of samples in the user's own batches."""
        return self._sizes.most_common(1)[0][0]

    @property
    def samples(self) -> int | None:
        """The number of samples, None if they were not read to their end."""
        return len(self._samples) if self._ended else None

    def counted(self, maximum: int, within_s: float) -> int | None:
        """The number of samples, by reading up to `maximum` of them; None if that takes longer."""
        began = time.monotonic()
        while len(self._samples) <= maximum and time.monotonic() - began < within_s:
            if not self._next():
                break
        return self.samples

    def let_go(self) -> None:
        """Ends the user's pipeline, which holds buffers; more samples come from another run."""
        self._batches = islice(self._begin_epoch(), self._sizes.total(), None)

    def _read(self, minimum: int, wanted: int, batches: int = 0) -> None:
        """Reads at least so many samples; in the spare time those `wanted`, of so many batches."""
        while len(self._samples) < minimum and self._next():
            pass
        began = time.monotonic()
        while len(self._samples) < wanted or self._sizes.total() < batches:
            if time.monotonic() - began > self._spare_s or not self._next():
                break
        self._spare_s -= time.monotonic() - began

    def _next(self) -> bool:
        """Reads a batch. Returns False if there is no other, or no room for it."""
        if self._ended or self._bytes >= _MOST_BYTES:
            return False
        batch = next(self._batches, None)
        self._ended = batch is None
        if self._ended:
            return False
        self._like = batch
        arrays = [tensor.numpy() for tensor in tf.nest.flatten(batch)]
        self._bytes += sum(array.nbytes for array in arrays)
        self._shapes.add(tuple(array.shape[1:] for array in arrays))
        size = len(arrays[0])
        self._sizes[size] += 1
        for place in range(size):
            self._samples.append(tuple(array[place : place + 1] for array in arrays))
        return True

    def _from(self, start: int, count: int) -> Any:
        """`count` samples in order from `start` on, beginning again after the last."""
        chosen = []
        for place in range(start, start + count):
            chosen.append(self._samples[place % len(self._samples)])
        arrays = [_together(values) for values in zip(*chosen, strict=True)]
        return tf.nest.pack_sequence_as(self._like, arrays)


def _together(samples: Sequence[Any]) -> Any:
    """The samples' values as one array, each padded to the longest."""
    largest = np.max([sample.shape[1:] for sample in samples], axis=0)
    whole = np.zeros((len(samples), *largest.astype(int)), samples[0].dtype)
    for place, sample in enumerate(samples):
        rows = tuple(map(slice, sample.shape))
        whole[place : place + 1][rows] = sample
    return whole
