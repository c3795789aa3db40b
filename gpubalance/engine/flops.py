"""Counts the operations of a model's forward pass with TensorFlow's own profiler."""

from __future__ import annotations

import statistics
import traceback
from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def count_forward(model: Any, samples: Sequence[Any]) -> float | None:
    """The mean of floating-point operations of these samples' forward passes; a multiply-add is two.

    Counts the operations that TensorFlow has a formula for, which take nearly all of the time: convolutions, matrix
    products, biases. None if its profiler can't read the model's graph, or finds nothing.
    """
    counted: dict[str, float] = {}
    told = []
    try:
        for one in samples:
            inputs = tf.nest.map_structure(lambda array: tf.TensorSpec(array.shape, array.dtype), one)
            key = str(inputs)
            if key not in counted:
                counted[key] = _count(model, inputs)
            told.append(counted[key])
    except Exception as error:  # noqa: BLE001  (never worth losing the measurement for)
        traceback.print_exception(error)
        return None
    return statistics.fmean(told) or None


def _count(model: Any, inputs: Any) -> float:
    graph = tf.function(lambda x: model(x, training=True), autograph=False).get_concrete_function(inputs).graph
    options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
    options["output"] = "none"
    return float(tf.compat.v1.profiler.profile(graph, options=options).total_float_ops)
