"""The state that layers keep from step to step without gradients: moving averages, counters, sums."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gpubalance.training.changes import SAMPLES, adds, is_keras_own, sources
from gpubalance.training.part import Change


class State:
    """The variables that a model's layers change by themselves, with their values on a replica before a step."""

    def __init__(self, model: Any) -> None:
        self._before = [
            (layer, variable, tf.convert_to_tensor(variable.value))
            for layer in model._flatten_layers()
            for variable in layer._non_trainable_variables
        ]

    def meet(self, context: Any, changes: Sequence[Change], weight: Any, *, whole: bool) -> None:
        """Gives all replicas the same values: the mean weighed by samples, or the sum of what each added.

        For a moving average of means, as Keras' layers have, the mean is what one device would have. State of a user's
        own layer is summed if the layer adds to it, and left alone if it does not depend on samples, as a step counter.
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
        f"the layer {layer.name} updates {variable.name} from its samples: the devices' values are {kind[0]}, which is "
        f"exact only for {kind[1]}",
        stacklevel=2,
    )
