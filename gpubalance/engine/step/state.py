"""What a step changes without gradients: layers' states, such as moving averages and counters, and
metrics.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine.keras_inside import is_keras_own
from gpubalance.engine.step.points import number_of_replica
from gpubalance.engine.step.sums import weighed, wide
from gpubalance.results.decomposition import MEAN, SUM, Decomposition


class State:
    """The variables of layers that all replicas must keep alike, and metrics' variables, of which
    each has its own.
    """

    def __init__(self, model: Any, verdict: Decomposition, *, whole: bool) -> None:
        """Reads them on a replica before its step. If each has the batch `whole`, all weigh as a
        mean does.
        """
        self._whole, self._powers = whole, powers_of(model, verdict)
        # Copies, which are on the replica's device: TensorFlow would take what a variable's read
        # gives into a loop on the first one.
        self._kept = [
            (variable, tf.identity(variable.value)) for variable in kept_of(model, verdict)
        ]
        self._summed = summed_of(model)
        of_metrics = (variable for metric in metrics_of(model) for variable in metric._variables)
        self._weighed = [one for one in of_metrics if whole or self._power(one, SUM) != SUM]

    def begin(self, *, again: bool = False) -> None:
        """Begins a part. Every other micro-batch begins `again`, with the layers' values before the
        step.
        """
        for variable, before in self._kept if again else []:
            variable.assign(before)
        self._is_first = not again and number_of_replica() == 0
        self._counted = [
            (variable, tf.convert_to_tensor(variable.value)) for variable in self._weighed
        ]

    def shares(self, weight: Any) -> list[Any]:
        """What a part with that weight has changed in each layer's variable, in numbers to be
        summed over all parts.

        Weighs what it has counted in its own metrics, too.
        """
        for variable, before in self._counted:
            variable.assign(_changed(before, self._counted_once(variable, before, weight)))
        return [self._share(variable, before, weight) for variable, before in self._kept]

    def counted(self) -> list[Any]:
        """What the replica's own metrics have counted by now, in the variables of `summed_of`."""
        return [tf.convert_to_tensor(variable.value) for variable in self._summed]

    def set(self, sums: list[Any]) -> None:
        """Gives the layers' variables their new values, from the sums of all parts' shares."""
        for (variable, before), change in zip(self._kept, sums, strict=True):
            variable.assign(_changed(before, change))

    @property
    def shapes(self) -> list[Any]:
        """The shapes of the shares."""
        return [before.shape for _, before in self._kept]

    def _share(self, variable: Any, before: Any, weight: Any) -> Any:
        change = _change(before, tf.convert_to_tensor(variable.value))
        return weighed(change, weight, MEAN if self._whole else self._power(variable, MEAN))

    def _power(self, variable: Any, usual: int) -> int:
        return self._powers.get(id(variable), usual)

    def _counted_once(self, variable: Any, before: Any, weight: Any) -> Any:
        """What a part adds to its own metric. A part of a whole number can't be added: the first
        one adds all.
        """
        if before.dtype.is_floating or self._whole:
            return self._share(variable, before, weight)
        return _change(before, tf.convert_to_tensor(variable.value)) * float(self._is_first)


def kept_of(model: Any, verdict: Decomposition) -> list[Any]:
    """The variables of layers that a step changes by itself: of Keras' own layers moving averages
    of means.

    Of a user's layers those that the parity check saw change; untried, all that are not whole
    numbers.
    """
    known = powers_of(model, verdict)
    return [
        variable
        for layer in model._flatten_layers()
        for variable in layer._non_trainable_variables
        if id(variable) in known
        or (tf.as_dtype(variable.dtype).is_floating and (is_keras_own(layer) or not verdict.step))
    ]


def changing_of(model: Any) -> list[Any]:
    """The variables that a step may change without gradients, in an order that all workers have
    alike.
    """
    of_metrics = [variable for metric in metrics_of(model) for variable in metric._variables]
    return [
        *of_metrics,
        *(one for layer in model._flatten_layers() for one in layer._non_trainable_variables),
    ]


def powers_of(model: Any, verdict: Decomposition) -> dict[int, int]:
    """The powers of the variables' shares that the parity check has found, by the
    variables' ids.
    """
    variables = changing_of(model)
    return {id(variables[place]): power for place, power in verdict.variables.items()}


def metrics_of(model: Any) -> list[Any]:
    """All metrics of a model, those of its compiled loss and those inside others too."""
    # A user's own property may leave some out.
    found = (*model.metrics, *keras.Model.metrics.fget(model))
    trackers = list(model._compile_loss.metrics) if model._compile_loss is not None else []
    return list({id(metric): metric for metric in (*_all(found), *trackers)}.values())


def summed_of(model: Any) -> list[Any]:
    """The metrics' variables of which each replica has its own, and their sum counts: nearly all of
    them.
    """
    variables = (variable for metric in metrics_of(model) for variable in metric._variables)
    return [
        one for one in variables if one.aggregation == "sum" and one.dtype in ("float32", "float64")
    ]


def _all(metrics: Any) -> list[Any]:
    """The metrics and those inside them."""
    return [
        one
        for metric in metrics
        for one in (metric, *_all(getattr(metric, "metrics", metric._metrics)))
    ]


def _change(before: Any, now: Any) -> Any:
    """A change as a number that every device can add, also of whole numbers and truths."""
    if before.dtype.is_bool:
        return tf.cast(now, tf.float32) - tf.cast(before, tf.float32)
    return tf.cast(now - before, wide(before.dtype))


def _changed(before: Any, change: Any) -> Any:
    if before.dtype.is_bool:
        return tf.cast(before, tf.float32) + change > 0.5
    return before + tf.cast(change if before.dtype.is_floating else tf.round(change), before.dtype)
