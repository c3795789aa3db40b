"""A step's graph with the terms of each sum perturbed as rounding would: what changes is rounding.

A sum is known to about Σ|terms|·ε, however small it is; ε is the distance of 1 to the next number
of the terms' dtype (N. Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 4.2).
To perturb each term by ε at random, and to look at how far the step's results go, measures this for
all sums of a step, and what later operations make of it: Monte Carlo arithmetic (D. S. Parker,
1997). So a gradient whose terms cancel, as those of the mean of a softmax do inside each sample,
shows as rounding. What is not a mean over samples differs by far more than such perturbations do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

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
_GRADIENTS = "gradient_tape/"  # in the name of each operation that a tape adds
_SEED = "perturbed/seed"


def perturbed(function: Any, but: str) -> Any:
    """A wrapped function with its terms perturbed; its first argument is an int32, the seed.

    Operations whose names begin with `but` stay as they are.
    """
    definition = _Definition(function.graph, but).perturbed()
    captured = function.captured_inputs
    own = function.inputs[: len(function.inputs) - len(captured)]

    def run(seed: Any, *arguments: Any) -> Any:
        capture = tf.compat.v1.get_default_graph().capture
        values = {f"{_SEED}:0": seed}
        inputs = (*arguments, *map(capture, captured))
        for tensor, value in zip(function.inputs, inputs, strict=True):
            values[tensor.name] = value
        names = [tensor.name for tensor in function.outputs]
        return tf.graph_util.import_graph_def(
            definition, input_map=values, return_elements=names, name=""
        )

    specs = [tf.TensorSpec((), tf.int32)]
    specs += [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in own]
    return tf.compat.v1.wrap_function(run, specs)


class _Definition:
    """A graph's definition, in which calls that perturb are put before the terms of sums."""

    def __init__(self, graph: Any, but: str) -> None:
        self._graph = graph
        self._but = but
        self._definition = graph.as_graph_def()
        self._calls: dict[str, str] = {}  # by the term's name

    def perturbed(self) -> Any:
        """The changed definition."""
        nodes = list(self._definition.node)
        self._add(_SEED, "Placeholder", dtype=tf.int32)
        functions = {}
        for node in nodes:
            dtype = _DTYPES.get(node.attr["T"].type) if "T" in node.attr else None
            if dtype is None or not self._is_rounded_anew(node.name, dtype):
                continue
            if dtype not in functions:
                functions[dtype] = _perturbing(dtype)
            for place in _places_of_terms(node):
                node.input[place] = self._call(functions[dtype], node.input[place])
        for function in functions.values():
            self._definition.library.function.append(function.function_def)
        return self._definition

    def _is_rounded_anew(self, name: str, dtype: str) -> bool:
        """Whether parts of other sizes round what an operation sums in other ways.

        In half precision those of gradients do, as these are divided by the part's size, and those
        over samples. Else it rounds a sample in the same way, whatever the others are.
        """
        if name.startswith(self._but):
            return False
        if dtype not in HALF or _GRADIENTS in name:
            return True
        results = self._graph.get_operation_by_name(name).outputs
        return all(result.shape.is_fully_defined() for result in results)

    def _call(self, function: Any, term: str) -> str:
        """The name of the term, perturbed: for all sums in the same way."""
        if term not in self._calls:
            number = len(self._calls)
            name = f"perturbed/{number}"
            place = self._add(f"{name}/number", "Const", dtype=tf.int32)
            place.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(number, tf.int32))
            call = self._add(name, "PartitionedCall")
            call.input.extend([term, _SEED, place.name])
            types = [tensor.dtype.as_datatype_enum for tensor in function.inputs]
            call.attr["Tin"].list.type.extend(types)
            call.attr["Tout"].list.type.append(types[0])
            call.attr["f"].func.name = function.function_def.signature.name
            self._calls[term] = name
        return self._calls[term]

    def _add(self, name: str, kind: str, dtype: Any = None) -> Any:
        node = self._definition.node.add(name=name, op=kind)
        if dtype is not None:
            node.attr["dtype"].type = dtype.as_datatype_enum
        return node


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
        drawn = tf.raw_ops.StatelessRandomNormal(
            shape=tf.shape(exact), seed=tf.stack([seed, place]), dtype=computed
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
