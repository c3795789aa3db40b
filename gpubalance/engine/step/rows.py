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
        # Of each gradient with fixed rows the indices and the dense shape, of another one nothing.
        self.places: Sequence[Any] = ()

    def summable(self, grads: Sequence[Any]) -> list[Any]:
        """A part's gradients, dense where all parts have the same rows: these add up one by one."""
        summable = []
        places = []
        for grad in grads:
            place: tuple[Any, ...] = ()
            if has_fixed_rows(grad):
                place = grad.indices, grad.dense_shape
                grad = grad.values
            summable.append(grad)
            places.append(place)
        # Of micro-batches the others are inside a loop
        self.places = self.places or places
        return summable

    def of_sum(self, sums: Sequence[Any]) -> list[Any]:
        """The sums over all parts, as gradients by rows where the parts' were."""
        gradients = []
        for total, place in zip(sums, self.places, strict=True):
            gradients.append(tf.IndexedSlices(total, *place) if place else total)
        return gradients
