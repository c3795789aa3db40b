"""A step's graph with the terms of each sum perturbed as rounding would: what changes is rounding.

A sum is known to about Σ|terms|·ε, however small it is; ε is the distance of 1 to the next number
of the terms' dtype (N. Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 4.2).
To perturb each term by ε at random, and to look at how far the step's results go, measures this for
all sums of a step, and what later operations make of it: Monte Carlo arithmetic (D. S. Parker,
1997). So a gradient whose terms cancel, as those of the mean of a softmax do inside each sample,
shows as rounding. What is not a mean over samples differs by far more than such perturbations do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import tensorflow as tf

from gpubalance.engine.step.half_sums import (
    rename_functions,
    sum_halves_in_float32,
    wrapped,
)

# The distance of 1 to the next number, by dtype.
SPACINGS = {
    "bfloat16": 2.0**-7,
    "float16": 2.0**-10,
    "float32": 2.0**-23,
    "float64": 2.0**-52,
}
_LEAST_NORMAL = {
    "bfloat16": 2.0**-126,
    "float16": 2.0**-14,
    "float32": 2.0**-126,
    "float64": 2.0**-1022,
}
HALF = {"bfloat16", "float16"}
_INT32 = tf.int32.as_datatype_enum
_CHANGED = "_perturbed"  # added to the names of functions
_DTYPES = {tf.as_dtype(name).as_datatype_enum: name for name in SPACINGS}
# The operations that sum, each with a slice of its inputs: those that are terms or factors of them.
_SUMMING = {
    **dict.fromkeys(("Add", "AddN", "AddV2", "AccumulateNV2", "Einsum"), slice(None)),
    **dict.fromkeys(("Sub", "SquaredDifference"), slice(2)),
    **dict.fromkeys(("MatMul", "BatchMatMulV2", "BatchMatMulV3"), slice(2)),
    **dict.fromkeys(("BiasAdd", "Conv2D", "Conv3D"), slice(2)),
    **dict.fromkeys(("DepthwiseConv2dNative", "FusedBatchNormGradV3"), slice(2)),
    **dict.fromkeys(("BiasAddGrad", "Cumsum", "L2Loss", "Mean", "Sum"), slice(1)),
    **dict.fromkeys(("SegmentMean", "SegmentSum", "SegmentSumV2"), slice(1)),
    **dict.fromkeys(("SparseSegmentSum", "UnsortedSegmentSum"), slice(1)),
    **dict.fromkeys(("AvgPool", "AvgPool3D", "FusedBatchNormV3"), slice(1)),
    **dict.fromkeys(("LogSoftmax", "Softmax"), slice(1)),
    "SparseSoftmaxCrossEntropyWithLogits": slice(1),
    "SoftmaxCrossEntropyWithLogits": slice(2),
    # One of the first two inputs is a shape.
    **dict.fromkeys(("AvgPoolGrad", "AvgPool3DGrad"), slice(1, 2)),
    **dict.fromkeys(("Conv2DBackpropInput", "Conv3DBackpropInputV2"), slice(1, 3)),
    "DepthwiseConv2dNativeBackpropInput": slice(1, 3),
    **dict.fromkeys(("Conv2DBackpropFilter", "Conv3DBackpropFilterV2"), slice(0, 3, 2)),
    "DepthwiseConv2dNativeBackpropFilter": slice(0, 3, 2),
}
# In the name of each operation of a gradient: of a tape, or in a function of a graph.
_GRADIENTS = ("gradient_tape/", "gradients/")
_SEED = "perturbed/seed"


def perturbed(function: Any, but: str) -> Any:
    """A wrapped function with its terms perturbed; its first argument is an int32, the seed.

    Operations whose names begin with `but` stay as they are.
    """
    definition = _Definition(function.graph, but).perturbed()
    return wrapped(function, definition, first=_SEED)


class _Definition:
    """A graph's definition, in which calls that perturb are put before the terms of sums."""

    def __init__(self, graph: Any, but: str) -> None:
        self._graph = graph
        self._but = but
        self._definition = graph.as_graph_def()
        self._number = 0  # of calls
        self._functions: dict[str, Any] = {}  # that perturb, by dtype

    def perturbed(self) -> Any:
        """The changed definition."""
        library = self._definition.library
        rename_functions(self._definition, _CHANGED)
        self._perturb(self._definition.node, _name_in_a_graph, self._is_rounded_anew)
        for function in library.function:
            self._perturb(function.node_def, _name_in_a_function, _is_of_a_gradient)
        for function in self._functions.values():
            library.function.append(function.function_def)
        sum_halves_in_float32(self._definition)
        return self._definition

    def _is_rounded_anew(self, name: str) -> bool:
        """Whether parts of other sizes round what sums in half precision in other ways.

        Gradients are divided by the part's size, and some sums are over samples. Else a sample is
        rounded in the same way, whatever the others are.
        """
        results = self._graph.get_operation_by_name(name).outputs
        over_samples = all(result.shape.is_fully_defined() for result in results)
        return over_samples or _is_of_a_gradient(name)

    def _perturb(
        self,
        nodes: Any,
        name_of_result: Callable[[str], str],
        is_rounded_anew: Callable[[str], bool],
    ) -> None:
        """Perturbs the terms of a graph's or a function's nodes."""
        old = list(nodes)
        add = partial(_add, nodes)
        if name_of_result is _name_in_a_graph:
            add(_SEED, "Placeholder").attr["dtype"].type = _INT32
        else:
            _set_number(add(_SEED, "Const"), 0)
        seed = name_of_result(_SEED)
        calls: dict[str, str] = {}  # by the term: it is the same one for all sums
        for node in old:
            dtype = _DTYPES.get(node.attr["T"].type) if "T" in node.attr else None
            if dtype is None or node.name.startswith(self._but):
                continue
            if dtype in HALF and not is_rounded_anew(node.name):
                continue
            for place in _places_of_terms(node):
                term = node.input[place]
                if term not in calls:
                    calls[term] = self._add_call(add, dtype, term, seed, name_of_result)
                node.input[place] = calls[term]

    def _add_call(
        self,
        add: Callable[[str, str], Any],
        dtype: str,
        term: str,
        seed: str,
        name_of_result: Callable[[str], str],
    ) -> str:
        """The name of the term, perturbed."""
        if dtype not in self._functions:
            self._functions[dtype] = _perturbing(dtype)
        function = self._functions[dtype]
        self._number += 1
        name = f"perturbed/{self._number}"
        _set_number(add(f"{name}/number", "Const"), self._number)
        call = add(name, "PartitionedCall")
        call.input.extend([term, seed, name_of_result(f"{name}/number")])
        types = [tensor.dtype.as_datatype_enum for tensor in function.inputs]
        call.attr["Tin"].list.type.extend(types)
        call.attr["Tout"].list.type.append(types[0])
        call.attr["f"].func.name = function.function_def.signature.name
        return name_of_result(name)


def _name_in_a_graph(node: str) -> str:
    return node


def _name_in_a_function(node: str) -> str:
    return f"{node}:output:0"


def _is_of_a_gradient(name: str) -> bool:
    return any(part in name for part in _GRADIENTS)


def _add(nodes: Any, name: str, kind: str) -> Any:
    return nodes.add(name=name, op=kind)


def _set_number(constant: Any, number: int) -> None:
    constant.attr["dtype"].type = _INT32
    value = tf.make_tensor_proto(number, tf.int32)
    constant.attr["value"].tensor.CopyFrom(value)


def _places_of_terms(node: Any) -> Iterable[int]:
    inputs = [name for name in node.input if not name.startswith("^")]
    return range(len(inputs))[_SUMMING.get(node.op, slice(0))]


def _perturbing(dtype: str) -> Any:
    """The function that perturbs terms of this dtype.

    It stays one call in the graph, or it would take TensorFlow longer to optimize it than to run
    the step.
    """
    number = tf.TensorSpec((), tf.int32)
    computed = "float64" if dtype == "float64" else "float32"

    def perturb(terms: Any, seed: Any, place: Any) -> Any:
        exact = tf.cast(terms, computed)
        # Other terms are moved in other ways, also in functions and loops, where the seed is fixed.
        total = tf.cast(tf.reduce_sum(exact), tf.float32)
        seeds = tf.stack([seed + tf.bitcast(total, tf.int32), place])
        drawn = tf.raw_ops.StatelessRandomNormal(
            shape=tf.shape(exact), seed=seeds, dtype=computed
        )
        # Below the least normal number the next ones are as far as there.
        size = tf.maximum(tf.abs(exact), tf.cast(_LEAST_NORMAL[dtype], computed))
        moved = exact + SPACINGS[dtype] * drawn * size
        # Whole numbers are exact, as counts and labels are.
        return tf.cast(tf.where(exact == tf.round(exact), exact, moved), dtype)

    return tf.function(
        perturb,
        input_signature=[tf.TensorSpec(None, dtype), number, number],
        experimental_attributes={"_noinline": True},
    ).get_concrete_function()
