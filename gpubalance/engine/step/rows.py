"""The rows of an embedding's gradient, of which optimizers square and clip each one that they get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gpubalance.engine.sources import has_fixed_rows


class Rows:
    """A replica's gradients by rows. Those of positions are the same in each part of a batch, those of words are not.

    One device gets a row of each position, the sum over all samples, but a row for each occurrence of a word.
    """

    def __init__(self) -> None:
        self._first: Sequence[Any] = ()

    def summable(self, grads: Sequence[Any]) -> list[Any]:
        """A part's gradients: those whose rows all parts have are dense, as then they add up row by row."""
        self._first = self._first or grads  # of micro-batches the others are inside a loop
        return [grad.values if has_fixed_rows(grad) else grad for grad in grads]

    def of_sum(self, sums: Sequence[Any]) -> list[Any]:
        """The sums over all parts as gradients by rows again."""
        return [
            tf.IndexedSlices(one, grad.indices, grad.dense_shape) if has_fixed_rows(grad) else one
            for one, grad in zip(sums, self._first, strict=True)
        ]
