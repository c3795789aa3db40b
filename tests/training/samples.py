"""Samples for small models, the same for the same count."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.late import keras


def numbers(count: int) -> tuple[Any, ...]:
    random = np.random.default_rng(5)
    return random.random((count, 6), np.float32), random.integers(0, 3, count)


def weighted(count: int) -> tuple[Any, ...]:
    return *numbers(count), np.random.default_rng(6).random(count).astype(np.float32)


def of_two(count: int) -> tuple[Any, ...]:
    random = np.random.default_rng(7)
    left, right = (random.random((count, size), np.float32) for size in (6, 4))
    kind, size = random.integers(0, 3, count), random.random((count, 1), np.float32)
    return {"left": left, "right": right}, {"kind": kind, "size": size}


def sentences(count: int) -> tuple[Any, ...]:
    """Sentences of different lengths, so that devices have different numbers of words."""
    random = np.random.default_rng(8)
    words = random.integers(1, 20, (count, 5))
    words[np.arange(5) >= random.integers(1, 6, count)[:, None]] = 0
    return words, np.roll(words, 1, axis=1)


def words(count: int) -> tuple[Any, ...]:
    random = np.random.default_rng(9)
    return random.integers(0, 20, (count, 5)), random.integers(0, 3, count)


def spoken(count: int) -> tuple[Any, ...]:
    """Samples with labels of different lengths, padded with 0."""
    random = np.random.default_rng(10)
    labels = random.integers(1, 5, (count, 3))
    labels[np.arange(3) >= random.integers(1, 4, count)[:, None]] = 0
    return random.normal(size=(count, 6, 4)).astype(np.float32), labels


def one_hot(count: int) -> tuple[Any, ...]:
    x, y = numbers(count)
    return x, np.eye(3, dtype=np.float32)[y]


def in_sizes(*sizes: int) -> Any:
    """Samples of `numbers` as a PyDataset, in batches of these sizes."""

    class Sizes(keras.utils.PyDataset):
        def __len__(self) -> int:
            return len(sizes)

        def __getitem__(self, index: int) -> Any:
            return numbers(sizes[index])

    return Sizes()
