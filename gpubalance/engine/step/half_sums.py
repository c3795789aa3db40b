"""A step's graph with its sums in half precision computed in float32, and rounded once.

TensorFlow's CPU kernels add such terms one after another. Of 4,096 equal terms a bias' gradient in
bfloat16 loses nine tenths, and a sum over the first axis in float16 a fifth (TensorFlow 2.21 on an
AMD EPYC, 2026-11-28). That is no error of a split, whose parts lose less.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import tensorflow as tf

_HALF = {
    tf.bfloat16.as_datatype_enum: tf.bfloat16,
    tf.float16.as_datatype_enum: tf.float16,
}
_SUFFIX = "_in_float32"  # of the names of functions


def with_half_sums_in_float32(function: Any) -> Any:
    """The wrapped function, or one like it whose sums in half precision are taken in float32."""
    definition = function.graph.as_graph_def()
    if not sum_halves_in_float32(definition):
        return function
    rename_functions(definition, _SUFFIX)
    return wrapped(function, definition)


def sum_halves_in_float32(definition: Any) -> bool:
    """Changes a graph's definition; whether there was such a sum."""
    added: dict[str, Any] = {}
    library = definition.library
    for nodes in (definition.node, *(one.node_def for one in library.function)):
        for node in nodes:
            summing = _summing(node)
            if summing is not None:
                _call_instead(node, summing)
                added[summing.function_def.signature.name] = summing.function_def
    for function in added.values():
        library.function.append(function)
    return bool(added)


def rename_functions(definition: Any, suffix: str) -> None:
    """Gives a graph's functions other names: TensorFlow keeps one function of a name."""
    functions = definition.library.function
    nodes = list(definition.node)
    names = set()
    for function in functions:
        nodes += function.node_def
        names.add(function.signature.name)
        function.signature.name += suffix
    for node in nodes:
        for attribute in node.attr.values():
            for called in (attribute.func, *attribute.list.func):
                if called.name in names:
                    called.name += suffix
    del definition.library.gradient[:]


def wrapped(function: Any, definition: Any, first: str = "") -> Any:
    """A function like a wrapped one, of a changed definition of its graph.

    With the name `first` of a placeholder, its first argument is an int32.
    """
    captured = function.captured_inputs
    own = function.inputs[: len(function.inputs) - len(captured)]

    def run(*arguments: Any) -> Any:
        capture = tf.compat.v1.get_default_graph().capture
        added = len(arguments) - len(own)
        inputs = (*arguments[added:], *map(capture, captured))
        values = {f"{first}:0": value for value in arguments[:added]}
        for tensor, value in zip(function.inputs, inputs, strict=True):
            values[tensor.name] = value
        names = [tensor.name for tensor in function.outputs]
        return tf.graph_util.import_graph_def(
            definition, input_map=values, return_elements=names, name=""
        )

    specs = [tf.TensorSpec((), tf.int32)] if first else []
    specs += [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in own]
    return tf.compat.v1.wrap_function(run, specs)


def _summing(node: Any) -> Any:
    """The function that stands for a node; None if it does not sum in half precision."""
    dtype = _HALF.get(node.attr["T"].type) if "T" in node.attr else None
    if dtype is None:
        return None
    if node.op == "BiasAddGrad":
        return _bias_gradient(dtype, node.attr["data_format"].s.decode() or "NHWC")
    if node.op in ("Sum", "Mean"):
        of_axes = tf.as_dtype(node.attr["Tidx"].type or tf.int32)
        return _reducing(node.op, dtype, of_axes, node.attr["keep_dims"].b)
    return None


def _call_instead(node: Any, function: Any) -> None:
    """Makes a node a call of the function, with the same inputs and the same result's name."""
    for name in list(node.attr):
        if not name.startswith("_"):
            del node.attr[name]
    node.op = "PartitionedCall"
    types = [tensor.dtype.as_datatype_enum for tensor in function.inputs]
    node.attr["Tin"].list.type.extend(types)
    node.attr["Tout"].list.type.append(types[0])
    node.attr["f"].func.name = function.function_def.signature.name


@cache
def _bias_gradient(dtype: Any, data_format: str) -> Any:
    def bias_gradient(gradient: Any) -> Any:
        exact = tf.cast(gradient, tf.float32)
        summed = tf.raw_ops.BiasAddGrad(out_backprop=exact, data_format=data_format)
        return tf.cast(summed, dtype)

    return _concrete(bias_gradient, tf.TensorSpec(None, dtype))


@cache
def _reducing(kind: str, dtype: Any, of_axes: Any, keeps: bool) -> Any:
    def reduced(values: Any, axes: Any) -> Any:
        reduce = getattr(tf.raw_ops, kind)
        exact = tf.cast(values, tf.float32)
        return tf.cast(reduce(input=exact, axis=axes, keep_dims=keeps), dtype)

    return _concrete(reduced, tf.TensorSpec(None, dtype), tf.TensorSpec(None, of_axes))


def _concrete(function: Callable[..., Any], *specs: Any) -> Any:
    return tf.function(function, input_signature=specs).get_concrete_function()
