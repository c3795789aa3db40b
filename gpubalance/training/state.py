"""The state that layers keep from step to step without gradients: moving averages, counters, sums."""

from __future__ import annotations

import warnings
from typing import Any

import tensorflow as tf

from gpubalance.engine.sources import SAMPLES, sources
from gpubalance.training.changes import adds, is_keras_own
from gpubalance.training.part import Part

_SUMMED = "the devices' values are summed"
_AVERAGED = "the devices' values are averaged"
_FIRST = "all devices get the first one's value"


class State:
    """The variables that a model's layers change by themselves, with their values on a replica before a step."""

    def __init__(self, model: Any) -> None:
        self._before = [
            (layer, variable, tf.convert_to_tensor(variable.value))
            for layer in model._flatten_layers()
            for variable in layer._non_trainable_variables
        ]

    def begin_again(self, first: Part) -> None:
        """Gives what does not depend on samples, such as a step counter, its value before the step.

        For another micro-batch after the `first` one, so that all of them find the same and it changes once.
        """
        values = {id(change.variable): change.value for change in first.changes}
        for _, variable, before in self._before:
            if id(variable) in values and SAMPLES not in sources(values[id(variable)]):
                variable.assign(before)

    def meet(self, context: Any, part: Part, weight: Any) -> None:
        """Gives all replicas the same values: the mean weighed by samples, or the sum of what each added.

        For a moving average of means, as Keras' layers have, the mean is what one device would have. State of a user's
        own layer is summed if the layer adds to it, and left alone if it does not depend on samples, as a step counter.
        Integers that are set become the first replica's. Of micro-batches `part` is the first.
        """
        values = {id(change.variable): change.value for change in part.changes}
        is_first = tf.get_static_value(context.replica_id_in_sync_group) == 0
        parts, met = [], []
        for layer, variable, before in self._before:
            value = None if is_keras_own(layer) else values.get(id(variable))
            if value is not None and SAMPLES not in sources(value):
                continue
            if value is None and not before.dtype.is_floating:
                continue
            how = _AVERAGED if value is None else _how(value, before.dtype)
            if value is not None and not (how == _SUMMED and before.dtype.is_integer):
                _warn(layer, variable, how, micro=part.micro)
            now = tf.convert_to_tensor(variable.value)
            change = now - before if before.dtype.is_floating else _number(now) - _number(before)
            counts = is_first if how == _FIRST else weight if how == _AVERAGED or part.whole else 1
            met.append((variable, before))
            parts.append(change * tf.cast(counts, change.dtype))
        if not parts:
            return
        for (variable, before), change in zip(met, context.all_reduce(tf.distribute.ReduceOp.SUM, parts), strict=True):
            is_bool = before.dtype.is_bool
            variable.assign(_number(before) + change != 0 if is_bool else before + tf.cast(change, before.dtype))


def _how(value: Any, dtype: Any) -> str:
    return _SUMMED if adds(value) else _AVERAGED if dtype.is_floating else _FIRST


def _number(value: Any) -> Any:
    """A whole number or a truth as one that every device can add."""
    return tf.cast(value, tf.float32)


def _warn(layer: Any, variable: Any, how: str, *, micro: bool) -> None:
    exact = {_SUMMED: "for a sum over samples", _FIRST: "if it is the same for any samples"}
    averaged = f"for a moving average of means{' without micro-batches' if micro else ''}"
    warnings.warn(
        f"the layer {layer.name} updates {variable.name} from its samples: {how}, which is exact only "
        f"{exact.get(how, averaged)}",
        stacklevel=2,
    )
