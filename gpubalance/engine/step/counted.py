"""Counts the floating-point operations of a step."""

from __future__ import annotations

import math
import re
import statistics
import traceback
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gpubalance.engine.step.built import unchanged
from gpubalance.engine.step.gradients import gradients_of
from gpubalance.engine.step.part import part_of
from gpubalance.engine.step.step import replacements_for_parts

# Operations that take long and have no formula, beside those that call a function, whose own are
# not counted.
_UNCOUNTED = re.compile("Conv3D|RNN")


def count_step(model: Any, samples: Sequence[Any]) -> float | None:
    """The mean of floating-point operations of a step on these samples, forward and backward.

    A multiply-add is two. Counts the operations that TensorFlow has a formula for, which take
    nearly all of the time: convolutions, matrix products, biases; and sums of products (einsum), as
    attention has. None for a step with loops, or with long operations that have no formula, as
    recurrent layers and 3-D convolutions have, and if a split can't train the model, or the
    profiler can't read the graph or finds nothing.
    """
    counts: list[float] = []
    by_shape: dict[str, float] = {}
    try:
        for sample in samples:
            specs = tf.nest.map_structure(
                lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), sample
            )
            shape = str(specs)
            if shape not in by_shape:
                by_shape[shape] = _count(model, specs)
            counts.append(by_shape[shape])
    except Exception as error:  # noqa: BLE001  (never worth losing the measurement for)
        traceback.print_exception(error)
        return None
    mean = statistics.fmean(counts)
    return None if math.isnan(mean) else mean or None


def _count(model: Any, specs: Any) -> float:
    """The operations of a step on one sample; no number if some can't be counted."""

    def step(data: Any) -> Any:
        replacements = replacements_for_parts(model, trains=True)
        with unchanged(model), part_of(1.0, replacements) as part:
            model.train_step(data)
            grads, _ = gradients_of(model, part)
        return [grad for grad in grads if grad is not None]

    graph = tf.function(step, autograph=False).get_concrete_function(specs).graph
    # Without what nothing needs, which does not run, as the gradient of the model's input.
    outputs = [output.op.name for output in graph.outputs]
    nodes = tf.compat.v1.graph_util.extract_sub_graph(
        graph.as_graph_def(), outputs
    ).node
    if any(_has_no_formula(node) for node in nodes):
        return math.nan
    options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
    options["output"] = "none"
    profile = tf.compat.v1.profiler.profile(graph, options=options)
    total = _profiled(profile, {node.name for node in nodes})
    for node in nodes:
        if node.op == "Einsum":
            total += _of_einsum(graph.get_operation_by_name(node.name))
    return float(total)


def _has_no_formula(node: Any) -> bool:
    calls = any(attribute.func.name for attribute in node.attr.values())
    return calls or _UNCOUNTED.search(node.op) is not None


def _profiled(node: Any, needed: set[str]) -> int:
    """The profiler's count for a node and those inside it, of the needed ones only."""
    own = node.float_ops if node.name in needed else 0
    return own + sum(_profiled(child, needed) for child in node.children)


def _of_einsum(operation: Any) -> int:
    """A multiply-add for each combination of the equation's indices."""
    sizes: dict[str, int] = {}
    inputs, _, _ = operation.get_attr("equation").decode().partition("->")
    for indices, tensor in zip(inputs.split(","), operation.inputs, strict=True):
        sizes |= zip(indices, tensor.shape, strict=True)
    return 2 * math.prod(sizes.values())
