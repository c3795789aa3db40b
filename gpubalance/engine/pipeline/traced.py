"""Traced functions of many tensors, and gradients that one of them sums over micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any

import tensorflow as tf

# A variable's gradient: dense, an embedding's IndexedSlices, or None.
Gradient = Any


class TracedFunction:
    """A function as one graph. TensorFlow's own call takes some 20 µs for each tensor, and a pass
    has hundreds.

    No gradient tape sees what it does.
    """

    def __init__(self, function: Callable[..., Any], *specs: Any) -> None:
        """Traces it for arguments like these structures of specs. Call it in one thread, as Keras
        is not thread-safe.

        Within the trace of another function, `needs` are tensors of that one, which it must return.
        """

        def run(*tensors: Any) -> Any:
            return function(*tf.nest.pack_sequence_as(specs, tensors, expand_composites=True))

        traced = tf.function(run, autograph=False)
        self._graph = traced.get_concrete_function(*tf.nest.flatten(specs, expand_composites=True))
        self.variables = self._graph.variables
        self.needs = self._graph.captured_inputs

    def __call__(self, *given: Any, needs: Sequence[Any] | None = None) -> Any:
        """Returns what the function returns. `needs` are the values of what it needs of another
        function.
        """
        tensors = [
            *tf.nest.flatten(given, expand_composites=True),
            *(self.needs if needs is None else needs),
        ]
        return self._graph._inference_function.call_preflattened(tensors)


def copied(tensors: Any) -> Any:
    """The same tensors on the present device."""
    return tf.nest.map_structure(tf.identity, tensors)


class Sums:
    """Running sums. An embedding's gradient keeps the rows of all micro-batches.

    Rows are not summed, unless each micro-batch has the same: Keras' Adam squares a row's gradients
    before it adds them, so it must get each one that it would get from one device.
    """

    def __init__(self) -> None:
        self._sums: list[list[Gradient]] = []
        self._traced: TracedFunction | None = None

    def add(self, grads: Sequence[Gradient]) -> None:
        """Adds the gradients of one micro-batch. Call it on their device."""
        if not self._sums:
            self._sums = [[grad] for grad in grads]
            return
        dense = {place: grad for place, grad in enumerate(grads) if isinstance(grad, tf.Tensor)}
        specs = [*map(spec_of, dense.values())]
        self._traced = self._traced or TracedFunction(_add, specs, specs)
        added = self._traced([self._sums[place][0] for place in dense], [*dense.values()])
        for place, total in zip(dense, added, strict=True):
            self._sums[place] = [total]
        for place, grad in enumerate(grads):
            if isinstance(grad, tf.IndexedSlices):
                self._sums[place].append(grad)

    def take(self, fixed_rows: Set[int] = frozenset()) -> list[Gradient]:
        """Returns the sums and forgets them; each micro-batch has the same rows for those in
        `fixed_rows`.
        """
        sums, self._sums = self._sums, []
        return [_joined(parts, fixed=place in fixed_rows) for place, parts in enumerate(sums)]


def _add(sums: Sequence[Any], grads: Sequence[Any]) -> list[Any]:
    return [total + grad for total, grad in zip(sums, grads, strict=True)]


def _joined(parts: Sequence[Gradient], *, fixed: bool) -> Gradient:
    if len(parts) == 1:
        return parts[0]
    values, indices = [one.values for one in parts], [one.indices for one in parts]
    joined = (
        (tf.add_n(values), indices[0]) if fixed else (tf.concat(values, 0), tf.concat(indices, 0))
    )
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
