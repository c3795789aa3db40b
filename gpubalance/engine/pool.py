"""Holds the user's samples on the host, and makes batches of any size from them."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_MOST_BYTES = 1 << 30  # a larger batch repeats some samples
# The most seconds, in all, for reading more batches than are needed: a pipeline may be slow.
_SPARE_S = 10.0
# The part of all samples between the starts of two batches: the golden ratio spreads any number of them evenly.
_GOLDEN = 0.6180339887


class Pool:
    """Reads the user's own batches as needed. If they differ in shape, they are padded with zeros."""

    def __init__(self, batches: Iterator[Any], *, looks_at: int = 1) -> None:
        """`looks_at` batches are read, unless that takes long, before one is made of them."""
        self._batches = batches
        self._looks_at = looks_at
        self._held: list[Any] = []
        self._ends: list[int] = []  # the place after each batch's last sample, counted over all
        self._bytes = 0
        self._ended = False
        self._layouts: set[tuple[tuple[int, ...], ...]] = set()
        self._spare_s = _SPARE_S

    def make(self, count: int, number: int) -> Any:
        """`count` samples as NumPy arrays, the `number`th such batch; samples repeat if there are too few.

        If batches differ in shape, each is equally likely to be in it. Returns None for an empty dataset.
        """
        self._read(count, (number + 1) * count)
        if not self._held:
            return None
        differ = self.differ
        return self._from(int(number * _GOLDEN % 1 * self._samples) if differ else number * count, count)

    def longest(self, count: int) -> Any:
        """The same, beginning with the batch that is the largest for its number of samples."""
        largest = max(range(len(self._held)), key=lambda i: _bytes(self._held[i]) / _samples(self._held[i]))
        return self._from(self._ends[largest - 1] if largest else 0, count)

    @property
    def differ(self) -> bool:
        """Whether the batches read so far differ in more than the number of samples."""
        return len(self._layouts) > 1

    @property
    def usual_size(self) -> int:
        """The most frequent number of samples in the user's own batches."""
        return Counter(map(_samples, self._held)).most_common(1)[0][0]

    @property
    def whole(self) -> int | None:
        """The number of samples, None if they were not read to their end."""
        return self._samples if self._ended else None

    @property
    def _samples(self) -> int:
        return self._ends[-1] if self._ends else 0

    def _read(self, least: int, wanted: int) -> None:
        while self._samples < least and self._next():
            pass
        began = time.monotonic()
        while self._samples < wanted or len(self._held) < self._looks_at:
            if time.monotonic() - began > self._spare_s or not self._next():
                break
        self._spare_s -= time.monotonic() - began

    def _next(self) -> bool:
        """Reads a batch. Returns False if there is no other, or no room for it."""
        if self._ended or self._bytes >= _MOST_BYTES:
            return False
        batch = next(self._batches, None)
        if batch is None:
            self._ended = True
            return False
        batch = tf.nest.map_structure(lambda values: values.numpy(), batch)
        self._bytes += _bytes(batch)
        self._ends.append(self._samples + _samples(batch))
        self._held.append(batch)
        self._layouts.add(_layout(batch))
        return True

    def _from(self, start: int, count: int) -> Any:
        """`count` samples in order from `start` on, beginning again after the last."""
        parts, place = [], start % self._samples
        while count:
            number = bisect_right(self._ends, place)
            held = self._held[number]
            first = place - self._ends[number] + _samples(held)
            part = tf.nest.map_structure(lambda values, a=first, n=count: values[a : a + n], held)
            parts.append(part)
            count -= _samples(part)
            place = (place + _samples(part)) % self._samples
        return tf.nest.map_structure(lambda *values: _joined(values), *parts)


def _joined(parts: Sequence[Any]) -> Any:
    """The parts in a row, each padded to the longest."""
    sizes = [max(lengths) for lengths in zip(*(part.shape[1:] for part in parts), strict=True)]
    whole, end = np.zeros((sum(map(len, parts)), *sizes), parts[0].dtype), 0
    for part in parts:
        end += len(part)
        whole[(slice(end - len(part), end), *map(slice, part.shape[1:]))] = part
    return whole


def _layout(batch: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(values.shape[1:] for values in tf.nest.flatten(batch))


def _samples(batch: Any) -> int:
    return len(tf.nest.flatten(batch)[0])


def _bytes(batch: Any) -> int:
    return sum(int(values.nbytes) for values in tf.nest.flatten(batch))
