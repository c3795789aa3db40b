"""What a process computes in: Keras' policy, and TF32, in which newer cards multiply float32."""

from __future__ import annotations

from typing import Any, cast

import keras
import tensorflow as tf

from gpubalance.engine.keras_patches import follow_floatx
from gpubalance.settings.choices import Precision


def use(precision: Precision) -> None:
    """Sets both for the whole process: models that are built from now on have the policy.

    One that is not mixed leaves the policy to Keras' floatx, which a user may have set to float64.
    """
    if _is_mixed(precision):
        keras.config.set_dtype_policy(precision)
    else:
        follow_floatx()
    tf.config.experimental.enable_tensor_float_32_execution(precision != "float32")


def policy_of(precision: Precision) -> str:
    """Keras' name of its policy."""
    return precision if _is_mixed(precision) else keras.config.floatx()


def of(model: keras.Model) -> Precision | None:
    """The precision that the model trains in here; None if it is none of ours, such as float64.

    By its layers with weights of floating dtypes: those of a saved model have the policy that they
    were saved with, some of a mixed model stay float32, and those that look up or hash have
    integers. Inputs, and models of layers, have the process' policy by themselves.
    """
    layers = [layer for layer in model._flatten_layers() if _has_precision(layer)]
    policies = [layer.dtype_policy.name for layer in layers or [model]]
    for name in policies:
        if _is_mixed(name):
            return cast("Precision", name)
    if "float32" not in policies:
        return None
    is_tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
    return "tf32" if is_tf32 else "float32"


def _is_mixed(name: str) -> bool:
    return name in ("mixed_float16", "mixed_bfloat16")


def _has_precision(layer: Any) -> bool:
    """Whether it has weights of a floating dtype, or may have them once it is built."""
    if isinstance(layer, keras.Model | keras.layers.InputLayer):
        return False
    own = layer._trainable_variables + layer._non_trainable_variables
    return tf.as_dtype(layer.variable_dtype).is_floating and bool(
        own or not layer.built
    )
