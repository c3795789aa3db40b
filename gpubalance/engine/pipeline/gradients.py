"""The gradients of a section's variables, summed over micro-batches."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import tensorflow as tf

from gpubalance.engine.pipeline.traced import Traced

# A variable's gradient: dense, an embedding's IndexedSlices, or None.
Gradient = Any


class Sums:
    """Running sums. An embedding's gradient keeps the rows of all micro-batches.

    Rows are not summed, unless each micro-batch has the same: Keras' Adam squares a row's gradients before it adds
    them, so it must get each one that it would get from one device.
    """

    def __init__(self) -> None:
        self._sums: list[list[Gradient]] = []
        self._traced: Traced | None = None

    def add(self, grads: Sequence[Gradient]) -> None:
        """Adds the gradients of one micro-batch. Call it on their device."""
        if not self._sums:
            self._sums = [[grad] for grad in grads]
            return
        dense = {place: grad for place, grad in enumerate(grads) if isinstance(grad, tf.Tensor)}
        specs = [*map(spec_of, dense.values())]
        self._traced = self._traced or Traced(_add, specs, specs)
        added = self._traced([self._sums[place][0] for place in dense], [*dense.values()])
        for place, total in zip(dense, added, strict=True):
            self._sums[place] = [total]
        for place, grad in enumerate(grads):
            if isinstance(grad, tf.IndexedSlices):
                self._sums[place].append(grad)

    def take(self, fixed_rows: Set[int] = frozenset()) -> list[Gradient]:
        """Returns the sums and forgets them; each micro-batch has the same rows for those in `fixed_rows`."""
        sums, self._sums = self._sums, []
        return [_joined(parts, fixed=place in fixed_rows) for place, parts in enumerate(sums)]


def _add(sums: Sequence[Any], grads: Sequence[Any]) -> list[Any]:
    return [total + grad for total, grad in zip(sums, grads, strict=True)]


def _joined(parts: Sequence[Gradient], *, fixed: bool) -> Gradient:
    if len(parts) == 1:
        return parts[0]
    values, indices = [one.values for one in parts], [one.indices for one in parts]
    joined = (tf.add_n(values), indices[0]) if fixed else (tf.concat(values, 0), tf.concat(indices, 0))
    return tf.IndexedSlices(*joined, parts[0].dense_shape)


def values_of(grad: Gradient) -> Any:
    """A gradient's numbers."""
    return grad.values if isinstance(grad, tf.IndexedSlices) else grad


def spec_of(grad: Gradient) -> Any:
    """What a function takes such a gradient as, of any number of rows."""
    if not isinstance(grad, tf.IndexedSlices):
        return tf.TensorSpec(grad.shape, grad.dtype)
    shape = tf.TensorShape([None, *grad.values.shape[1:]])
    types = grad.indices.dtype, None if grad.dense_shape is None else grad.dense_shape.dtype
    return tf.IndexedSlicesSpec(shape, grad.dtype, *types, indices_shape=tf.TensorShape([None]))
