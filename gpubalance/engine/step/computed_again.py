"""Computes a tensor of a graph again, from other values and from variables as they are now."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf

from gpubalance.engine.sources import ancestors


def computed_again(value: Any, known: Mapping[int, Any], reads: Collection[Any]) -> Any:
    """The tensor `value`, from values that are `known` by the ids of tensors, and by new `reads`.

    `reads` are operations that read variables. What depends on neither is taken as it is, unless
    `value` is inside a function: its other operations then take place outside too.
    """
    graph = tf.compat.v1.get_default_graph()
    is_inside = value.graph is not graph
    new = dict(known)
    if is_inside:
        new |= {id(inner): outer for outer, inner in value.graph.captures}
    if new or reads or is_inside:
        needed = {tensor.op for tensor in ancestors(value, new)}
        for op in value.graph.get_operations():  # each comes after those that it needs
            is_known = all(id(output) in new for output in op.outputs)
            if op not in needed or is_known:
                continue
            inputs = [new.get(id(tensor), tensor) for tensor in op.inputs]
            has_new = any(id(tensor) in new for tensor in op.inputs)
            if is_inside or has_new or op in reads:
                for old, copy in zip(
                    op.outputs, _copied(op, inputs, graph).outputs, strict=True
                ):
                    new.setdefault(id(old), copy)
    return new.get(id(value), value)


def _copied(op: Any, inputs: Sequence[Any], graph: Any) -> Any:
    """The operation with other inputs, on its device."""
    attributes = dict(op.node_def.attr)
    attributes.pop("_class", None)
    types = [output.dtype for output in op.outputs]
    with tf.device(op.device):
        return graph.create_op(
            op.type, inputs, types, attrs=attributes, op_def=op.op_def
        )
