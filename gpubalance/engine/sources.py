"""What a tensor of a step's graph is computed from."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator
from typing import Any

import tensorflow as tf

SAMPLES = "samples"
_OF_SHAPE = {"Shape", "ShapeN", "Size", "Rank", "OnesLike", "ZerosLike"}
_DIVIDING = ("RealDiv", "DivNoNan", "Div", "Reciprocal")
_SAME = {"Cast", "Identity", "Reshape", "Squeeze"}


def sources(value: Any, until: Container[int] = ()) -> set[Any]:
    """What a value is computed from: SAMPLES for the step's input, the id of a variable's handle.

    Tensors with the ids `until` which it looks are left out. A value that is not a tensor of a
    graph has only its own id, as nothing is known about it.
    """
    origins: set[Any] = set()
    todo = [value]
    seen = set()
    while todo:
        tensor = todo.pop()
        if id(tensor) in until:
            continue
        if not tf.is_symbolic_tensor(tensor):
            origins.add(id(tensor))
        elif tensor.op not in seen and not is_size_of_samples(tensor.op):
            seen.add(tensor.op)
            todo += tensor.op.inputs
            if tensor.op.type == "Placeholder":
                outside = [
                    outer for outer, inner in tensor.graph.captures if inner is tensor
                ]
                todo += outside
                if not outside:
                    origins.add(SAMPLES)
    return origins


def ancestors(
    tensor: Any, until: Container[int] = (), *, but: Container[str] = ()
) -> Iterator[Any]:
    """A tensor of a graph and all that it is computed from there, `until` tensors with these ids.

    Inputs of operations of the types `but` are left out.
    """
    todo = [tensor]
    seen = set()
    while todo:
        source = todo.pop()
        if id(source) in seen:
            continue
        seen.add(id(source))
        yield source
        if id(source) not in until and source.op.type not in but:
            todo += source.op.inputs


def dtypes_behind_samples(value: Any) -> set[str]:
    """The dtypes in which a value is computed once it has none for each sample any more.

    Before that rounding is alike for a sample, whatever the others are.
    """
    dtypes = {value.dtype.name}
    todo = [value]
    seen = set()
    while todo:
        tensor = todo.pop()
        if id(tensor) not in seen and tensor.shape.is_fully_defined():
            seen.add(id(tensor))
            dtypes.add(tensor.dtype.name)
            todo += tensor.op.inputs
    return dtypes


def reaches(loss: Any, samples: Collection[Any], until: Container[int]) -> bool:
    """Whether a loss is divided by what is computed from the batch's values.

    The mean of chosen samples is such a loss.
    """
    if not tf.is_symbolic_tensor(loss):
        return False
    sample_ids = {id(tensor) for tensor in samples}
    for op in {tensor.op for tensor in ancestors(loss, until)}:
        if op.type == "Mean":
            if _chooses(op.inputs[0], until):
                return True
        elif op.type in _DIVIDING and op.inputs[-1].shape.is_fully_defined():
            divisor = op.inputs[-1]
            of_divisor = {id(tensor) for tensor in ancestors(divisor, but=_OF_SHAPE)}
            if sample_ids & of_divisor or _chooses(divisor, until):
                return True
    return False


def _chooses(tensor: Any, until: Container[int]) -> bool:
    """Whether a tensor is computed from chosen samples."""
    return any(source.op.type == "Where" for source in ancestors(tensor, until))


def is_sum(tensor: Any) -> bool:
    """Whether a number is what a sum gives, as it is."""
    op = tensor.op
    while op.type in _SAME:
        op = op.inputs[0].op
    return bool(op.type == "Sum")


def is_size_of_samples(op: Any) -> bool:
    """Whether it gives a size of the samples, such as their length, which all parts have alike."""
    if op.type != "StridedSlice" or op.inputs[0].op.type != "Shape":
        return False
    values = op.inputs[0].op.inputs[0]
    at = tf.get_static_value(op.inputs[1])
    if at is None or values.shape.rank is None or values.shape.as_list()[:1] != [None]:
        return False
    # Behind a transposition another axis may be that of the samples.
    is_transposed = any(source.op.type == "Transpose" for source in ancestors(values))
    return at[0] % values.shape.rank > 0 and not is_transposed


def has_fixed_rows(grad: Any) -> bool:
    """Whether a gradient has the same rows for each part of a batch.

    That of an embedding of positions has, not that of words. One device gets such a row once,
    summed over all samples, but a row for each occurrence of a word. Optimizers square and clip
    each row that they get.
    """
    return isinstance(grad, tf.IndexedSlices) and SAMPLES not in sources(grad.indices)
