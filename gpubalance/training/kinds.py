"""Whether a number that a step computes from its part of a batch is a mean over samples or a sum: its graph tells."""

from __future__ import annotations

from collections.abc import Iterator, Set
from enum import Enum
from typing import Any

import numpy as np
import tensorflow as tf

from gpubalance.engine.sources import SAMPLES, ancestors, maker, sources


class Kind(Enum):
    """What the parts' numbers make of the whole batch's.

    FIXED: each part has it. MEAN: their mean, weighed by samples. SUM: their sum. COUNT: their sum too, and it is the
    number of samples, or in proportion to it. OTHER: it can't be had from them, or is not known.
    """

    FIXED = "fixed"
    MEAN = "mean"
    SUM = "sum"
    COUNT = "count"
    OTHER = "other"


_FIXED, _MEAN, _SUM, _COUNT, _OTHER = Kind
_SAME = {"BroadcastTo", "Cast", "CheckNumerics", "EnsureShape", "ExpandDims", "Identity", "Neg", "PreventGradient"}
_SAME |= {"Reshape", "Snapshot", "Squeeze", "StopGradient"}
_SUMS = {"Bincount", "DenseBincount", "ScatterNd", "SegmentSum", "UnsortedSegmentSum"}  # confusion matrices too
_PRODUCTS = {"BatchMatMulV2", "Einsum", "MatMul"}
_ADDING = {"Add", "AddN", "AddV2", "Pack", "Sub"}
_CHOOSING = {"Where", "DynamicPartition"}  # some of the samples, of which each part may have another number
_DISTINCT = {"Unique", "UniqueV2", "UniqueWithCounts"}  # of which parts may have the same
_DIVIDING = {"RealDiv", "Div", "DivNoNan"}
_MULTIPLYING = {"Mul", "MulNoNan"}
_TERMS = {*_ADDING, *_DIVIDING, *_MULTIPLYING}
_OF_TERMS = {"Mean", "SelectV2", "Sum"}  # Keras sums the loss and those that layers add
_OF_ELEMENTS = {
    "Abs",
    "Cast",
    "Equal",
    "Exp",
    "Greater",
    "Less",
    "Log",
    "Maximum",
    "Minimum",
    "Pow",
    "SelectV2",
    "Sqrt",
}
_OF_ELEMENTS |= {"Square", "SquaredDifference", *_TERMS, *_SAME}


def is_of_each(tensor: Any) -> bool:
    """Whether a tensor has a value for each sample: then the graph does not know its length."""
    return tensor.shape.rank is None or None in tensor.shape.as_list()


def kind_of(tensor: Any, weight: Any) -> Kind:
    """The kind of a tensor of a step's graph, where `weight` is the part's in the whole batch."""
    if not tf.is_symbolic_tensor(tensor):
        return _FIXED
    kind = _SUM if _is(tensor, weight) else _by_rule(tensor.op, weight)
    return _FIXED if kind is _OTHER and SAMPLES not in sources(tensor) else kind


def is_by_sum(loss: Any, weight: Any) -> bool:
    """Whether a loss, or a term of it, is divided by a sum or mean over samples, as of weights; by their number is not.

    Nor are Keras' own losses, which `losses.py` brings to their share of such a sum.
    """
    if not tf.is_symbolic_tensor(loss) or is_of_each(loss) or loss.op.type not in _SAME | _TERMS | _OF_TERMS:
        return False
    inputs = list(loss.op.inputs)
    if loss.op.type in _DIVIDING:
        by = maker(inputs[1])
        sums = by.inputs if by.type in ("Add", "AddV2", "Maximum") else inputs[1:]  # beside a constant against 0
        if not _is(inputs[1], weight) and any(kind_of(one, weight) in (_SUM, _MEAN) for one in sums):
            return True
    return not any(_is_by(one, weight) for one in inputs) and any(is_by_sum(one, weight) for one in inputs)


def _by_rule(op: Any, weight: Any) -> Kind:
    inputs = list(op.inputs)
    if op.type in _SAME:
        return _OTHER if is_of_each(inputs[0]) else kind_of(inputs[0], weight)
    if op.type in _SUMS or (op.type in _PRODUCTS and not is_of_each(op.outputs[0]) and all(map(is_of_each, inputs))):
        return _SUM
    if op.type in ("Mean", "Sum", "L2Loss"):
        return _reduced(inputs[0], weight, mean=op.type == "Mean", squares=op.type == "L2Loss")
    if op.type in _ADDING:
        kinds = {kind_of(one, weight) for one in _addends(op)}
        if kinds <= {_FIXED, _MEAN}:
            return _MEAN if _MEAN in kinds else _FIXED
        return _SUM if kinds <= {_SUM, _COUNT} else _OTHER
    if op.type in _MULTIPLYING:
        return _product(inputs[0], inputs[1], weight)
    if op.type in _DIVIDING:
        return _quotient(kind_of(inputs[0], weight), inputs[1], weight)
    return _number_of_samples(op, weight)


def _addends(op: Any) -> Iterator[Any]:
    """What a sum is made of, however many additions make it."""
    todo = list(op.inputs)
    while todo:
        one = todo.pop()
        if one.op.type in _ADDING:
            todo += one.op.inputs
        else:
            yield one


def _reduced(values: Any, weight: Any, *, mean: bool, squares: bool = False) -> Kind:
    """The kind of the mean, the sum or the sum of squares of values."""
    if not is_of_each(values):
        kind = _OTHER if squares else kind_of(values, weight)
        return _SUM if kind is _COUNT else kind
    inputs, made = list(values.op.inputs), maker(values)
    if made.type in ("Fill", "OnesLike") and not (mean or squares):  # a sum of ones is their number
        size = _size_of(made.inputs[0].op, weight) if made.type == "Fill" else _size_like(made.inputs[0])
        kind = _times({size, kind_of(made.inputs[1], weight) if made.type == "Fill" else _FIXED})
        if kind is not _OTHER:
            return kind
    if values.op.type in _DIVIDING | _MULTIPLYING and not (squares or all(map(is_of_each, inputs))):
        one, other = inputs if is_of_each(inputs[0]) else reversed(inputs)
        if values.op.type in _MULTIPLYING:
            return _times({_reduced(one, weight, mean=mean), kind_of(other, weight)})
        if other is inputs[1]:
            return _quotient(_reduced(one, weight, mean=mean), other, weight)
    if _is_of_others(values, weight):
        return _OTHER
    return _SUM if not mean else _OTHER if _has(values, _CHOOSING) else _MEAN


def _is_of_others(values: Any, weight: Any) -> bool:
    """Whether values for each sample are computed from a number of the whole part, as distances from its mean are."""
    todo, seen = [values.op], set()
    while todo:
        op = todo.pop()
        if op.type not in _OF_ELEMENTS or op in seen:
            continue
        seen.add(op)
        for one in op.inputs:
            if is_of_each(one):
                todo.append(one.op)
            elif kind_of(one, weight) is not _FIXED:
                return True
    return False


def _product(one: Any, other: Any, weight: Any) -> Kind:
    if _is_by(one, weight) or _is_by(other, weight):  # a loss that does not divide by samples: see losses.py
        return _MEAN
    if _is(one, weight) or _is(other, weight):  # a loss as `optimizer.scale_loss` returns it
        kinds = {kind_of(tensor, weight) for tensor in (one, other) if not _is(tensor, weight)}
        return _SUM if kinds <= {_FIXED, _MEAN} else _OTHER
    return _times({kind_of(one, weight), kind_of(other, weight)})


def _times(kinds: Set[Kind]) -> Kind:
    if _FIXED in kinds:
        return max(kinds, key=lambda kind: kind is not _FIXED)
    return _SUM if kinds == {_MEAN, _COUNT} else _OTHER


def _quotient(kind: Kind, other: Any, weight: Any) -> Kind:
    if _is(other, weight):
        return _MEAN if kind in (_SUM, _COUNT) else _OTHER
    by = kind_of(other, weight)
    if by is _FIXED:
        return kind
    return _MEAN if kind in (_SUM, _COUNT) and by is _COUNT else _OTHER


def _number_of_samples(op: Any, weight: Any) -> Kind:
    """COUNT for the length of values for each sample, or what they have in all; of their other sizes OTHER."""
    if op.type == "Size":
        return _size_like(op.inputs[0])
    if op.type == "Prod":
        return _size_of(op.inputs[0].op, weight)
    if op.type != "StridedSlice":
        return _OTHER
    shape = op.inputs[0].op
    if shape.type != "Shape":
        return _OTHER if is_of_each(op.inputs[0]) else kind_of(op.inputs[0], weight)
    return _size_of(op, weight)


def _size_like(values: Any) -> Kind:
    return _OTHER if _has(values, _CHOOSING | _DISTINCT) else _COUNT


def _size_of(shape: Any, weight: Any) -> Kind:
    """The kind of how many values there are of such a shape: COUNT if one of its axes is that of the samples."""
    if shape.type == "Pack":  # as Keras makes it of `ops.shape`
        kinds = [kind_of(one, weight) for one in shape.inputs]
        return _COUNT if kinds.count(_COUNT) == 1 and set(kinds) <= {_COUNT, _FIXED} else _OTHER
    of = shape.inputs[0].op if shape.type == "StridedSlice" else shape
    if of.type != "Shape":
        return _OTHER
    if _has(of.inputs[0], _CHOOSING):
        return _SUM
    has_first = shape is of or np.array_equal(tf.get_static_value(shape.inputs[1]), [0])
    return _COUNT if has_first and not _has(of.inputs[0], _DISTINCT) else _OTHER


def _has(values: Any, types: Set[str]) -> bool:
    return any(tensor.op.type in types for tensor in ancestors(values))


def _is(tensor: Any, weight: Any) -> bool:
    """Whether it is the part's weight, in whatever type."""
    op = maker(tensor)
    return op is not None and op is maker(weight)


def _is_by(tensor: Any, weight: Any) -> bool:
    """Whether it is something divided by the part's weight, in whatever type."""
    op = maker(tensor)
    return op is not None and op.type == "RealDiv" and _is(op.inputs[1], weight)
