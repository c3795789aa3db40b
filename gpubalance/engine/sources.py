"""What a tensor of a step's graph is computed from."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator
from typing import Any

import tensorflow as tf

SAMPLES = "samples"
_OF_SHAPE = {"Shape", "ShapeN", "Size", "Rank", "OnesLike", "ZerosLike"}
_DIVIDING = ("RealDiv", "DivNoNan", "Div", "Reciprocal", "Mean")
_SAME = {"Cast", "Identity", "Reshape", "Squeeze"}


def sources(value: Any, until: Container[int] = ()) -> set[Any]:
    """What a value is computed from: SAMPLES for the step's input, and the id of each variable's
    handle.

    Tensors with the ids `until` which it looks are left out.

    A value that is not a tensor of a graph has only its own id, as nothing is known about it.
    """
    found: set[Any] = set()
    todo, seen = [value], set()
    while todo:
        tensor = todo.pop()
        if id(tensor) in until:
            continue
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


def ancestors(
    tensor: Any, until: Container[int] = (), *, but: Container[str] = ()
) -> Iterator[Any]:
    """A tensor of a graph and all that it is computed from there, `until` tensors with these ids.

    Inputs of operations of the types `but` are left out.
    """
    todo, seen = [tensor], set()
    while todo:
        one = todo.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            todo += one.op.inputs if id(one) not in until and one.op.type not in but else []


def reaches(loss: Any, samples: Collection[Any], until: Container[int]) -> bool:
    """Whether a loss is divided by what is computed from the batch's values, as the mean of chosen
    samples is.
    """
    if not tf.is_symbolic_tensor(loss):
        return False
    divisions = [one.op for one in ancestors(loss, until) if one.op.type in _DIVIDING]
    means = [op.inputs[0] for op in divisions if op.type == "Mean"]
    divisors = [
        op.inputs[-1]
        for op in divisions
        if op.type != "Mean" and op.inputs[-1].shape.is_fully_defined()
    ]
    known = {id(one) for one in samples}
    return any(
        known & {id(one) for one in ancestors(divisor, but=_OF_SHAPE)} for divisor in divisors
    ) or any(
        one.op.type == "Where" for number in (*means, *divisors) for one in ancestors(number, until)
    )


def is_sum(tensor: Any) -> bool:
    """Whether a number is what a sum gives, as it is."""
    op = tensor.op
    while op.type in _SAME:
        op = op.inputs[0].op
    return bool(op.type == "Sum")


def is_size_of_samples(op: Any) -> bool:
    """Whether it gives a size of the samples, such as their length, which all parts of a batch have
    alike.
    """
    if op.type != "StridedSlice" or op.inputs[0].op.type != "Shape":
        return False
    values, at = op.inputs[0].op.inputs[0], tf.get_static_value(op.inputs[1])
    if at is None or values.shape.rank is None or values.shape.as_list()[:1] != [None]:
        return False
    # Behind a transposition another axis may be that of the samples.
    return at[0] % values.shape.rank > 0 and not any(
        one.op.type == "Transpose" for one in ancestors(values)
    )


def has_fixed_rows(grad: Any) -> bool:
    """Whether a gradient has the same rows for each part of a batch, as an embedding's of
    positions; not of words.

    One device gets such a row once, summed over all samples, but a row for each occurrence of a
    word. Optimizers square and clip each row that they get.
    """
    return isinstance(grad, tf.IndexedSlices) and SAMPLES not in sources(grad.indices)
