"""What a process computes in: Keras' policy, and TF32, in which newer cards multiply float32."""

from __future__ import annotations

import keras
import tensorflow as tf

from gpubalance.settings.choices import Precision


def use(precision: Precision) -> None:
    """Sets both for the whole process: models that are built from now on have the policy."""
    keras.config.set_dtype_policy(policy_of(precision))
    tf.config.experimental.enable_tensor_float_32_execution(precision != "float32")


def policy_of(precision: Precision) -> str:
    """Keras' name of its policy."""
    return precision if precision.startswith("mixed_") else "float32"


def of(model: keras.Model) -> str:
    """The precision that the model trains in here, or Keras' name of a policy that is none of ours.

    By its layers: those of a saved model have the policy that they were saved with, and some of a
    mixed model stay float32. Inputs, and models of layers, have the process' policy by themselves.
    """
    of_process = (keras.Model, keras.layers.InputLayer)
    layers = [one for one in model._flatten_layers() if not isinstance(one, of_process)] or [model]
    policies = [layer.dtype_policy.name for layer in layers]
    policy: str = next((name for name in policies if name.startswith("mixed_")), policies[0])
    if policy != "float32":
        return policy
    is_tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
    return "tf32" if is_tf32 else "float32"
