"""What of a step's result is rounding: its graph with perturbed terms, or with sums in float32.

A sum is known to about Σ|terms|·ε, however small it is; ε is the distance of 1 to the next number
of the terms' dtype (N. Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 4.2).
Perturbing each term by ε at random, and measuring how far the step's results move, shows this for
all sums of a step, and what later operations make of it: Monte Carlo arithmetic (D. S. Parker,
1997). So a gradient whose terms cancel, as those of the mean of a softmax do inside each sample,
shows as rounding. If a result is no mean over samples, its parts miss the whole by far more.

TensorFlow's CPU kernels add half-precision terms one by one. Of 4,096 equal terms a bias gradient
in bfloat16 loses nine tenths, and a sum over the first axis in float16 a fifth (TensorFlow 2.21 on
an AMD EPYC, 2026-11-28). That is no error of a split, whose parts lose less.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import tensorflow as tf

from gpubalance.engine.sources import ancestors

# The distance of 1 to the next number, by dtype.
SPACINGS = {
    "bfloat16": 2.0**-7,
    "float16": 2.0**-10,
    "float32": 2.0**-23,
    "float64": 2.0**-52,
}
_SMALLEST_NORMAL = {
    "bfloat16": 2.0**-126,
    "float16": 2.0**-14,
    "float32": 2.0**-126,
    "float64": 2.0**-1022,
}
HALF = {"bfloat16", "float16"}
_INT32 = tf.int32.as_datatype_enum
# Added to the names of functions
_PERTURBED_SUFFIX = "_perturbed"
_FLOAT32_SUFFIX = "_in_float32"
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
# The name of each operation of a gradient has one of these: of a tape's, or of one in a function.
_GRADIENTS = ("gradient_tape/", "gradients/")
_SEED = "perturbed/seed"  # the name of a node
_HALF = {
    tf.bfloat16.as_datatype_enum: tf.bfloat16,
    tf.float16.as_datatype_enum: tf.float16,
}


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
        rename_functions(self._definition, _PERTURBED_SUFFIX)
        self._perturb(self._definition.node, _name_in_a_graph, self._is_rounded_anew)
        for function in library.function:
            self._perturb(function.node_def, _name_in_a_function, _is_of_a_gradient)
        for function in self._functions.values():
            library.function.append(function.function_def)
        sum_halves_in_float32(self._definition)
        return self._definition

    def _is_rounded_anew(self, name: str) -> bool:
        """Whether parts of other sizes round this operation's sums in half precision otherwise.

        They do so for gradients, which are divided by the part's size, and for sums over samples.
        In other operations a sample is rounded in the same way, whatever the other samples are.
        """
        results = self._graph.get_operation_by_name(name).outputs
        is_over_samples = all(result.shape.is_fully_defined() for result in results)
        return is_over_samples or _is_of_a_gradient(name)

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
        calls: dict[str, str] = {}  # by the term, which all its sums take from one call
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
        """Adds a call that perturbs the term; returns the name of its result."""
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

    It is not inlined into the graph: TensorFlow would take longer to optimize that than to run the
    step.
    """
    int32_scalar = tf.TensorSpec((), tf.int32)
    computed = "float64" if dtype == "float64" else "float32"

    def perturb(terms: Any, seed: Any, call_number: Any) -> Any:
        exact = tf.cast(terms, computed)
        # Different terms move differently, also in functions and loops, where the seed is fixed.
        total = tf.cast(tf.reduce_sum(exact), tf.float32)
        seeds = tf.stack([seed + tf.bitcast(total, tf.int32), call_number])
        drawn = tf.raw_ops.StatelessRandomNormal(
            shape=tf.shape(exact), seed=seeds, dtype=computed
        )
        # Below the smallest normal number the spacing stays the same.
        size = tf.maximum(tf.abs(exact), tf.cast(_SMALLEST_NORMAL[dtype], computed))
        moved = exact + SPACINGS[dtype] * drawn * size
        # Whole numbers are exact, as counts and labels are.
        return tf.cast(tf.where(exact == tf.round(exact), exact, moved), dtype)

    return tf.function(
        perturb,
        input_signature=[tf.TensorSpec(None, dtype), int32_scalar, int32_scalar],
        experimental_attributes={"_noinline": True},
    ).get_concrete_function()


def with_half_sums_in_float32(function: Any) -> Any:
    """The wrapped function, or one like it whose sums in half precision are taken in float32."""
    definition = function.graph.as_graph_def()
    if not sum_halves_in_float32(definition):
        return function
    rename_functions(definition, _FLOAT32_SUFFIX)
    return wrapped(function, definition)


def sum_halves_in_float32(definition: Any) -> bool:
    """Makes a graph's sums in half precision sum in float32; returns whether it had any."""
    added: dict[str, Any] = {}
    library = definition.library
    for nodes in (definition.node, *(one.node_def for one in library.function)):
        for node in nodes:
            in_float32 = _sum_in_float32(node)
            if in_float32 is not None:
                _call_instead(node, in_float32)
                added[in_float32.function_def.signature.name] = in_float32.function_def
    for function in added.values():
        library.function.append(function)
    return bool(added)


def rename_functions(definition: Any, suffix: str) -> None:
    """Adds a suffix to the names of a graph's functions: TensorFlow keeps one of each name."""
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

    If `first` names an int32 placeholder, the value of that is the function's first argument.
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


def _sum_in_float32(node: Any) -> Any:
    """The function to call instead of a node; None if the node does not sum in half precision."""
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


def computed_again(value: Any, known: Mapping[int, Any], reads: Collection[Any]) -> Any:
    """The tensor `value` in the present graph, from `known` values and by new `reads`.

    `known` has values by the ids of the tensors that they replace. `reads` are operations that read
    variables, which are read anew. What depends on neither is not copied, unless `value` is inside
    a function, of which all operations that it needs are.
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
