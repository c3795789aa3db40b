"""Gradients by rows, as an embedding has them: how those of parts make the whole batch's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gpubalance.engine.sources import has_fixed_rows


class Rows:
    """A replica's gradients by rows: all parts have the rows of positions, but not those of words.

    One device gets a row of each position, the sum over all samples, but a row for each occurrence
    of a word. Optimizers square and clip each row that they get.
    """

    def __init__(self) -> None:
        self._first: Sequence[Any] = ()

    def summable(self, grads: Sequence[Any]) -> list[Any]:
        """A part's gradients, dense where all parts have the same rows: these add up one by one."""
        self._first = self._first or grads  # of micro-batches the others are inside a loop
        summable = []
        for grad in grads:
            if has_fixed_rows(grad):
                grad = grad.values
            summable.append(grad)
        return summable

    def of_sum(self, sums: Sequence[Any]) -> list[Any]:
        """The sums over all parts, as gradients by rows where the parts' were."""
        gradients = []
        for total, grad in zip(sums, self._first, strict=True):
            if has_fixed_rows(grad):
                total = tf.IndexedSlices(total, grad.indices, grad.dense_shape)
            gradients.append(total)
        return gradients
