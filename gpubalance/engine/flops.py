"""Counts the operations of a step with TensorFlow's own profiler."""

from __future__ import annotations

import statistics
import traceback
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gpubalance.engine.step.built import unchanged
from gpubalance.engine.step.gradients import gradients_of
from gpubalance.engine.step.part import part_of
from gpubalance.engine.step.step import dividing


def count_step(model: Any, samples: Sequence[Any]) -> float | None:
    """The mean of floating-point operations of a step on these samples, forward and backward; a multiply-add is two.

    Counts the operations that TensorFlow has a formula for, which take nearly all of the time: convolutions, matrix
    products, biases. None if a split can't train the model, its profiler can't read the graph, or finds nothing.
    """
    specs = [tf.nest.map_structure(lambda one: tf.TensorSpec(one.shape, one.dtype), x) for x in samples]
    try:
        counted = {key: _count(model, one) for key, one in {str(one): one for one in specs}.items()}
    except Exception as error:  # noqa: BLE001  (never worth losing the measurement for)
        traceback.print_exception(error)
        return None
    return statistics.fmean(counted[str(one)] for one in specs) or None


def _count(model: Any, specs: Any) -> float:
    def step(data: Any) -> Any:
        with unchanged(model), dividing(model, trains=True), part_of(1.0) as part:
            return [grad for grad in gradients_of(model, part, data)[0] if grad is not None]

    graph = tf.function(step, autograph=False).get_concrete_function(specs).graph
    options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
    options["output"] = "none"
    return float(tf.compat.v1.profiler.profile(graph, options=options).total_float_ops)
