"""What a tensor of a step's graph is computed from."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

import tensorflow as tf

SAMPLES = "samples"


def sources(value: Any) -> set[Any]:
    """What a value is computed from: SAMPLES for the step's input, and the id of each variable's handle.

    A value that is not a tensor of a graph has only its own id, as nothing is known about it.
    """
    found: set[Any] = set()
    todo, seen = [value], set()
    while todo:
        tensor = todo.pop()
        if not tf.is_symbolic_tensor(tensor):
            found.add(id(tensor))
        elif tensor.op not in seen and not is_size_of_samples(tensor.op):
            seen.add(tensor.op)
            todo += tensor.op.inputs
            if tensor.op.type == "Placeholder":
                outside = [outer for outer, inner in tensor.graph.captures if inner is tensor]
                todo += outside
                found |= set() if outside else {SAMPLES}
    return found


def ancestors(tensor: Any, until: Container[int] = ()) -> Iterator[Any]:
    """A tensor of a graph and all that it is computed from there, `until` tensors with these ids."""
    todo, seen = [tensor], set()
    while todo:
        one = todo.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            todo += one.op.inputs if id(one) not in until else []


def maker(tensor: Any) -> Any:
    """The operation that made a tensor, behind casts and identities; None for what is not a tensor of a graph."""
    op = tensor.op if tf.is_symbolic_tensor(tensor) else None
    while op is not None and op.type in ("Cast", "Identity"):
        op = op.inputs[0].op
    return op


def is_size_of_samples(op: Any) -> bool:
    """Whether it gives a size of the samples, such as their length, which all parts of a batch have alike."""
    if op.type != "StridedSlice" or op.inputs[0].op.type != "Shape":
        return False
    values, at = op.inputs[0].op.inputs[0], tf.get_static_value(op.inputs[1])
    if at is None or values.shape.rank is None or values.shape.as_list()[:1] != [None]:
        return False
    # Behind a transposition another axis may be that of the samples.
    return at[0] % values.shape.rank > 0 and not any(one.op.type == "Transpose" for one in ancestors(values))


def has_fixed_rows(grad: Any) -> bool:
    """Whether a gradient has the same rows for each part of a batch, as an embedding's of positions; not of words.

    One device gets such a row once, summed over all samples, but a row for each occurrence of a word. Optimizers square
    and clip each row that they get.
    """
    return isinstance(grad, tf.IndexedSlices) and SAMPLES not in sources(grad.indices)
