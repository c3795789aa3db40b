"""Adam and SGD with TensorFlow's one kernel for a variable, in place of the ten to thirty of Keras.

Keras writes them out in elementwise operations: in a network of 30 convolutions half of all of a
step's operations come after the last sum, each a launch on a GPU. TensorFlow's ResourceApplyAdam,
ResourceApplyKerasMomentum and ResourceApplyGradientDescent have the same formulas (Kingma and Ba,
2015, section 2, "the order of computation can be changed"; Sutskever et al., 2013).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from gpubalance.engine import keras_patches
from gpubalance.engine.keras_patches import slot_of
from gpubalance.engine.replacing import Replacements

_FUSED = (keras.optimizers.Adam, keras.optimizers.AdamW, keras.optimizers.SGD)
_DTYPES = (tf.float32, tf.float64)


def fused_updates() -> Replacements:
    """What updates variables instead of Keras' `update_step`, in one trace of a step."""
    return {
        keras_patches.ADAM_UPDATE: _Adam().update,
        keras_patches.SGD_UPDATE: _update_by_sgd,
    }


class _AdamFactors(NamedTuple):
    """What a step's updates by Adam have in common, of the variables' dtype.

    Keras rounds 1 - β to the dtype, and the kernel takes a rounded β from 1: for β₂ = 0.999 in
    float32 its 1 - β₂ is 4.7e-5 larger. So are its moments at first; where gradients stay alike
    each is (1 - rounded β^t) / (1 - β^t) times Keras' in step t. The rate and epsilon make up for
    that.
    """

    rate: Any
    beta_1: Any
    beta_2: Any
    epsilon: Any

    @classmethod
    def of(cls, optimizer: Any, dtype: Any, rate: Any) -> _AdamFactors:
        """The factors for the optimizer's next step."""
        step = tf.cast(optimizer.iterations.value + 1, tf.float64)
        given = np.array([optimizer.beta_1, optimizer.beta_2])
        rounded = given.astype(dtype.as_numpy_dtype)
        apart = (1 - rounded.astype(float) ** step) / (1 - given**step)
        of_mean, of_square = tf.unstack(apart)
        root = tf.sqrt(of_square)
        return cls(
            rate=_rate_of_keras(optimizer, dtype, rate)
            * tf.cast(root / of_mean, dtype),
            beta_1=tf.constant(rounded[0]),
            beta_2=tf.constant(rounded[1]),
            epsilon=tf.cast(optimizer.epsilon * root, dtype),
        )


def _rate_of_keras(optimizer: Any, dtype: Any, rate: Any) -> Any:
    """The rate that Keras' Adam multiplies the mean by, rounded as it does."""
    step = tf.cast(optimizer.iterations.value + 1, dtype)
    of_mean = 1 - tf.cast(optimizer.beta_1, dtype) ** step
    of_square = 1 - tf.cast(optimizer.beta_2, dtype) ** step
    return tf.cast(rate, dtype) * tf.sqrt(of_square) / of_mean


class _Adam:
    """Adam's update, with what variables of a device have in common computed once."""

    def __init__(self) -> None:
        self._factors: dict[Any, _AdamFactors] = {}

    def update(
        self, original: Any, optimizer: Any, gradient: Any, variable: Any, rate: Any
    ) -> None:
        """In place of `Adam.update_step`."""
        if not _is_fused(optimizer, gradient, variable) or optimizer.amsgrad:
            original(optimizer, gradient, variable, rate)
            return
        graph = tf.compat.v1.get_default_graph()
        key = graph, id(optimizer), variable.device, variable.dtype
        if key not in self._factors:
            self._factors[key] = _AdamFactors.of(optimizer, variable.dtype, rate)
        factors = self._factors[key]
        none = tf.zeros(
            (), variable.dtype
        )  # the rate has what follows from powers of β
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=slot_of(optimizer, "_momentums", variable).handle,
            v=slot_of(optimizer, "_velocities", variable).handle,
            beta1_power=none,
            beta2_power=none,
            lr=factors.rate,
            beta1=factors.beta_1,
            beta2=factors.beta_2,
            epsilon=factors.epsilon,
            grad=tf.cast(gradient, variable.dtype),
        )


def _update_by_sgd(
    original: Any, optimizer: Any, gradient: Any, variable: Any, rate: Any
) -> None:
    """In place of `SGD.update_step`."""
    if not _is_fused(optimizer, gradient, variable):
        original(optimizer, gradient, variable, rate)
        return
    dtype = variable.dtype
    rate = tf.cast(rate, dtype)
    gradient = tf.cast(gradient, dtype)
    if not optimizer.momentum:
        tf.raw_ops.ResourceApplyGradientDescent(
            var=variable.handle, alpha=rate, delta=gradient
        )
        return
    tf.raw_ops.ResourceApplyKerasMomentum(
        var=variable.handle,
        accum=slot_of(optimizer, "momentums", variable).handle,
        lr=rate,
        grad=gradient,
        momentum=tf.cast(optimizer.momentum, dtype),
        use_nesterov=optimizer.nesterov,
    )


def _is_fused(optimizer: Any, gradient: Any, variable: Any) -> bool:
    """Whether it is Keras' own optimizer and a dense gradient, for numbers that kernels have."""
    return (
        type(optimizer) in _FUSED
        and isinstance(gradient, tf.Tensor)
        and variable.dtype in _DTYPES
    )
