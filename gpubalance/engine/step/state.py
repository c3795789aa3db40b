"""What a step changes without gradients: the states of layers and of metrics.

A layer's state is a moving average or a counter, for example.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine.keras_patches import is_keras_own
from gpubalance.engine.step.part import Change
from gpubalance.engine.step.points import number_of_replica
from gpubalance.engine.step.sums import weighed, wide
from gpubalance.results.combine_rules import MEAN, SUM, CombineRules


class State:
    """Variables of layers, which all replicas keep alike, and of metrics, each replica's own."""

    def __init__(
        self,
        model: Any,
        combine_rules: CombineRules,
        *,
        replicated: bool,
        micro: bool = False,
    ) -> None:
        """Reads them on a replica before its step.

        If the batch is `replicated`, all weigh as a mean does. A step of `micro`-batches reads the
        weights too.
        """
        self._replicated = replicated
        self._weight_exponents = weight_exponents_of(model, combine_rules)
        self._equal_on_all = _copies(equal_on_all(model, combine_rules))
        self._weights = _copies(_weights_of(model) if micro else [])
        self._set: list[Any] = []
        self._has_begun = False
        self._weighed = []
        for variable, _ in metric_variables(model):
            if replicated or self._weight_exponent(variable, SUM) != SUM:
                self._weighed.append(variable)

    def begin(self) -> None:
        """Begins a part. Each micro-batch begins with the layers' values before the step."""
        if self._has_begun:
            for variable, before in self._equal_on_all + self._set:
                variable.assign(before)
        self._is_first = not self._has_begun and number_of_replica() == 0
        self._has_begun = True
        values = [tf.convert_to_tensor(variable.value) for variable in self._weighed]
        self._counted = list(zip(self._weighed, values, strict=True))

    def note_changes(self, changes: Sequence[Change]) -> None:
        """Notes what a part's step assigned: the next micro-batch begins without it.

        That may be weights, which spectral normalisation changes. Done anew by each micro-batch, it
        would be another thing on each replica.
        """
        changed = {id(change.variable) for change in changes}
        self._set = [pair for pair in self._weights if id(pair[0]) in changed]

    def weigh_metrics(self, weight: Any) -> None:
        """Weighs what a part with that weight has counted in the metrics, each replica's own."""
        for variable, before in self._counted:
            variable.assign(
                _changed(before, self._counted_once(variable, before, weight))
            )

    def shares(self, weight: Any) -> list[Any]:
        """What a part with that weight changed in the layers' variables; the sum is the whole's."""
        return [
            self._share(variable, before, weight)
            for variable, before in self._equal_on_all
        ]

    def set(self, sums: list[Any]) -> None:
        """Gives the layers' variables their new values, from the sums of all parts' shares."""
        for (variable, before), change in zip(self._equal_on_all, sums, strict=True):
            variable.assign(_changed(before, change))

    @property
    def shapes(self) -> list[Any]:
        """The shapes of the shares."""
        return [before.shape for _, before in self._equal_on_all]

    def _share(self, variable: Any, before: Any, weight: Any) -> Any:
        weight_exponent = (
            MEAN if self._replicated else self._weight_exponent(variable, MEAN)
        )
        return weighed(_change(before, variable), weight, weight_exponent)

    def _weight_exponent(self, variable: Any, usual: int) -> int:
        return self._weight_exponents.get(id(variable), usual)

    def _counted_once(self, variable: Any, before: Any, weight: Any) -> Any:
        """What a part adds to its own metric.

        Whole numbers can't be divided among the parts: the first part adds all.
        """
        if before.dtype.is_floating or self._replicated:
            return self._share(variable, before, weight)
        return _change(before, variable) * float(self._is_first)


def _copies(variables: Iterable[Any]) -> list[tuple[Any, Any]]:
    """The variables with their values.

    These are copies, which are on the replica's device: TensorFlow would take what a variable's
    read gives into a loop on the first one.
    """
    return [(variable, tf.identity(variable.value)) for variable in variables]


def _weights_of(model: Any) -> list[Any]:
    """The weights that are trained, or would be if their layers were not frozen."""
    states = {id(variable) for variable, _ in layer_variables(model)}
    return [variable for variable in model.weights if id(variable) not in states]


def _change(before: Any, variable: Any) -> Any:
    """A change as a number that every device can add, also of whole numbers and truths."""
    now = tf.convert_to_tensor(variable.value)
    if before.dtype.is_bool:
        return tf.cast(now, tf.float32) - tf.cast(before, tf.float32)
    return tf.cast(now - before, wide(before.dtype))


def _changed(before: Any, change: Any) -> Any:
    if before.dtype.is_bool:
        return tf.cast(before, tf.float32) + change > 0.5
    if not before.dtype.is_floating:
        change = tf.round(change)
    return before + tf.cast(change, before.dtype)


def equal_on_all(model: Any, combine_rules: CombineRules) -> list[Any]:
    """The variables of layers that a step changes by itself.

    They are moving averages of means in Keras' own layers, and in a user's those that the parity
    check saw change; untried, all that are not whole numbers.
    """
    known = weight_exponents_of(model, combine_rules)
    is_untried = not combine_rules.step
    variables = []
    for variable, layer in layer_variables(model):
        is_floating = tf.as_dtype(variable.dtype).is_floating
        is_average = is_floating and (is_keras_own(layer) or is_untried)
        if is_average or id(variable) in known:
            variables.append(variable)
    return variables


def changing_of(model: Any) -> list[Any]:
    """The variables that a step may change without gradients; all workers have this order."""
    return [
        variable for variable, _ in metric_variables(model) + layer_variables(model)
    ]


def weight_exponents_of(model: Any, combine_rules: CombineRules) -> dict[int, int]:
    """The powers that the parity check has found for variables, by the variables' ids."""
    variables = changing_of(model)
    return {
        id(variables[place]): weight_exponent
        for place, weight_exponent in combine_rules.variables.items()
    }


def layer_variables(model: Any) -> list[tuple[Any, Any]]:
    """The variables of layers that are not trained, each with its layer."""
    pairs = []
    for layer in model._flatten_layers():
        for variable in layer._non_trainable_variables:
            pairs.append((variable, layer))
    return pairs


def metric_variables(model: Any) -> list[tuple[Any, Any]]:
    """The variables of all metrics, each with its metric."""
    pairs = []
    for metric in metrics_of(model):
        for variable in metric._variables:
            pairs.append((variable, metric))
    return pairs


def metrics_of(model: Any) -> list[Any]:
    """All metrics of a model, those of its compiled loss and those inside others too."""
    # A user's own property may leave some out.
    metrics = with_inner([*model.metrics, *keras.Model.metrics.fget(model)])
    if model._compile_loss is not None:
        metrics += model._compile_loss.metrics
    return list({id(metric): metric for metric in metrics}.values())


def with_inner(metrics: Iterable[Any]) -> list[Any]:
    """The metrics and those inside them."""
    found = []
    for metric in metrics:
        found.append(metric)
        found += with_inner(getattr(metric, "metrics", metric._metrics))
    return found


def metric_values(variables: Iterable[Any]) -> list[Any]:
    """What the replica's own metrics have counted by now in these of their variables."""
    return [tf.convert_to_tensor(variable.value) for variable in variables]


def of_each_replica(model: Any, *, several_here: bool) -> list[Any]:
    """The metrics' variables of which each replica has its own, and the sum counts: nearly all.

    If there are `several_here`, in this process, they share a variable from outside the scope.
    """
    found = []
    for variable, _ in metric_variables(model):
        is_of_scope = isinstance(variable._value, tf.distribute.DistributedValues)
        if variable.aggregation == "sum" and (is_of_scope or not several_here):
            found.append(variable)
    return found


def handles(variables: Iterable[Any]) -> set[int]:
    """The ids of the variables' handles, on every device."""
    found = set()
    for variable in variables:
        # Its `value` may be one that a scope has for it
        found |= handles_of(variable._value)
    return found


def handles_of(variable: Any) -> set[int]:
    """The ids of the handles of a variable of TensorFlow, on every device."""
    return {id(local.handle) for local in getattr(variable, "values", [variable])}
