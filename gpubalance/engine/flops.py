"""How much work a model's forward pass is, as TensorFlow's own profiler counts it."""

from __future__ import annotations

import traceback
from typing import Any

import tensorflow as tf


def count_forward(model: Any, one_sample: Any) -> float | None:
    """Floating-point operations of one sample's forward pass; a multiply-add is two.

    Counts the operations that TensorFlow has a formula for, which take nearly all of the time: convolutions, matrix
    products, biases. None where its profiler can't read the model's graph, or finds nothing.
    """
    inputs = tf.nest.map_structure(lambda array: tf.TensorSpec(array.shape, array.dtype), one_sample)
    try:
        graph = tf.function(lambda x: model(x, training=True), autograph=False).get_concrete_function(inputs).graph
        options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
        options["output"] = "none"
        counted = tf.compat.v1.profiler.profile(graph, options=options)
    except Exception as error:  # noqa: BLE001  (a figure beside the measurement: never worth losing it)
        traceback.print_exception(error)
        return None
    return float(counted.total_float_ops) or None
