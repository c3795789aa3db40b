"""Traced functions of many tensors, and gradients that one of them sums over micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any

import tensorflow as tf

# A variable's gradient: dense, an embedding's IndexedSlices, or None.
Gradient = Any


class TracedFunction:
    """A function as one graph; no gradient tape sees what it does.

    TensorFlow's own call takes some 20 µs for each tensor, and a pass has hundreds.
    """

    def __init__(self, function: Callable[..., Any], *specs: Any) -> None:
        """Traces it for arguments like these structures of specs.

        Call it in one thread, as Keras is not thread-safe. Within the trace of another function,
        `needs` are tensors of that one, which it must return.
        """

        def run(*tensors: Any) -> Any:
            return function(
                *tf.nest.pack_sequence_as(specs, tensors, expand_composites=True)
            )

        traced = tf.function(run, autograph=False)
        self._graph = traced.get_concrete_function(*_flat(specs))
        self.variables = self._graph.variables
        self.needs = self._graph.captured_inputs

    def __call__(self, *arguments: Any, needs: Sequence[Any] | None = None) -> Any:
        """Calls the function; `needs` are the values of what it needs of another one."""
        needs = self.needs if needs is None else needs
        return self._graph._inference_function.call_preflattened(
            [*_flat(arguments), *needs]
        )


def _flat(structure: Any) -> list[Any]:
    return tf.nest.flatten(structure, expand_composites=True)  # type: ignore[no-any-return]


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
        dense = {}
        for place, grad in enumerate(grads):
            if isinstance(grad, tf.Tensor):
                dense[place] = grad
            elif grad is not None:
                self._sums[place].append(grad)
        if self._traced is None:
            specs = list(map(spec_of, dense.values()))
            self._traced = TracedFunction(_add, specs, specs)
        before = [self._sums[place][0] for place in dense]
        totals = self._traced(before, list(dense.values()))
        for place, total in zip(dense, totals, strict=True):
            self._sums[place] = [total]

    def take(self, fixed_rows: Set[int]) -> list[Gradient]:
        """Returns the sums and forgets them.

        Those with a place in `fixed_rows` have the same rows in each micro-batch.
        """
        sums = self._sums
        self._sums = []
        return [
            _joined(parts, fixed=place in fixed_rows)
            for place, parts in enumerate(sums)
        ]


def _add(sums: Sequence[Any], grads: Sequence[Any]) -> list[Any]:
    return [total + grad for total, grad in zip(sums, grads, strict=True)]


def _joined(parts: Sequence[Gradient], *, fixed: bool) -> Gradient:
    if len(parts) == 1:
        return parts[0]
    values = [part.values for part in parts]
    indices = [part.indices for part in parts]
    shape = parts[0].dense_shape
    if fixed:
        return tf.IndexedSlices(tf.add_n(values), indices[0], shape)
    return tf.IndexedSlices(tf.concat(values, 0), tf.concat(indices, 0), shape)


def values_of(grad: Gradient) -> Any:
    """A gradient's numbers."""
    return grad.values if isinstance(grad, tf.IndexedSlices) else grad


def spec_of(grad: Gradient) -> Any:
    """What a function takes such a gradient as, of any number of rows."""
    if not isinstance(grad, tf.IndexedSlices):
        return tf.TensorSpec(grad.shape, grad.dtype)
    shape_dtype = None
    if grad.dense_shape is not None:
        shape_dtype = grad.dense_shape.dtype
    return tf.IndexedSlicesSpec(
        tf.TensorShape([None, *grad.values.shape[1:]]),
        grad.dtype,
        grad.indices.dtype,
        shape_dtype,
        indices_shape=tf.TensorShape([None]),
    )
