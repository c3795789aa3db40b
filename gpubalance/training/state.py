"""What layers keep from step to step and no gradient changes: moving averages, counters, sums."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gpubalance.training.changes import SAMPLES, adds, is_keras_own, sources
from gpubalance.training.part import Change


class State:
    """The variables that a model's layers change by themselves, on one replica and as they are before a step."""

    def __init__(self, model: Any) -> None:
        self._before = [
            (layer, variable, tf.convert_to_tensor(variable.value))
            for layer in model._flatten_layers()
            for variable in layer._non_trainable_variables
        ]

    def meet(self, context: Any, changes: Sequence[Change], weight: Any, *, whole: bool) -> None:
        """Gives all replicas the same: their mean by samples, or the sum of what each added.

        The mean is one device's for a moving average of means, as Keras' layers have. What a layer of the user's own
        keeps is summed if it was added to, and left alone if it does not come from the samples, as a counter of steps.
        """
        values = {id(change.variable): change.value for change in changes}
        parts, met = [], []
        for layer, variable, before in self._before:
            value = None if is_keras_own(layer) else values.get(id(variable))
            of_samples = value is not None and SAMPLES in sources(value)
            summed = of_samples and adds(value)
            if of_samples and not (summed and before.dtype.is_integer):
                _warn(layer, variable, summed=summed)
            if (value is None or of_samples) and (summed or before.dtype.is_floating):
                change = tf.convert_to_tensor(variable.value) - before
                change = change if before.dtype.is_floating else tf.cast(change, tf.float32)
                met.append((variable, before))
                parts.append(change if summed and not whole else change * tf.cast(weight, change.dtype))
        if not parts:
            return
        for (variable, before), change in zip(met, context.all_reduce(tf.distribute.ReduceOp.SUM, parts), strict=True):
            variable.assign(before + tf.cast(change, before.dtype))


def _warn(layer: Any, variable: Any, *, summed: bool) -> None:
    kind = ("summed", "a sum over samples") if summed else ("averaged", "a moving average of means")
    warnings.warn(
        f"the layer {layer.name} keeps {variable.name} of its samples: the devices' are {kind[0]}, which is what one "
        f"device would have only if it is {kind[1]}",
        stacklevel=2,
    )
