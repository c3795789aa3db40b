"""What a user's own metric adds to its state for a part of a batch, so that the parts add what one device would."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine.sources import SAMPLES, sources
from gpubalance.training.changes import addition, handles, is_keras_own
from gpubalance.training.kinds import Kind, kind_of
from gpubalance.training.part import Part, current, replaced


@contextlib.contextmanager
def adding(metrics: Iterable[Any]) -> Iterator[None]:
    """Makes own metrics that add one number a batch add it once; warns of what the parts can't add up to.

    Keras sums the state over the devices.
    """
    owners = {id(variable): metric for metric in metrics if not is_keras_own(metric) for variable in metric._variables}
    assign = keras.Variable.assign

    def of_part(variable: Any, value: Any) -> Any:
        part, metric = current.part, owners.get(id(variable))
        if part is not None and metric is not None and not part.whole:
            value = _of_part(metric, variable, value, part)
        return assign(variable, value)

    with replaced(keras.Variable, assign=of_part):
        yield


def _of_part(metric: Any, variable: Any, value: Any, part: Part) -> Any:
    """What the part assigns to a metric's variable where the step assigns `value`."""
    what = addition(value)
    if what is None or not handles([variable]) & sources(what[0]):
        if SAMPLES in sources(value):
            _warn(metric, f"sets {variable.name} instead of adding to it: the devices' values are summed")
        return value
    before, change = what
    kind = Kind.SUM if _extends_keras(metric) else kind_of(change, part.weight)
    if kind in (Kind.SUM, Kind.COUNT):
        return value
    if kind is Kind.FIXED and not part.micro:
        return value if variable.aggregation != "sum" or _is_first() else before
    exact = kind is not Kind.OTHER and change.dtype.is_floating and variable.aggregation == "sum"
    if not exact or handles(metric.variables) & sources(change):
        _warn(
            metric,
            f"adds to {variable.name} what is neither a mean nor a sum over samples: what each device and each "
            "micro-batch adds is summed",
        )
        return value
    return before + (value - before) * tf.cast(part.weight, value.dtype)


def _warn(metric: Any, what: str) -> None:
    warnings.warn(f"the metric {metric.name} {what}, which is not what one device would log", stacklevel=2)


def _extends_keras(metric: Any) -> bool:
    """Whether its class is made from one of Keras' own metrics: those add sums, of numbers that are weighed."""
    kinds = (kind for kind in type(metric).__mro__ if issubclass(kind, keras.Metric))
    return any(is_keras_own(kind) and kind is not keras.Metric for kind in kinds)


def _is_first() -> bool:
    number = tf.distribute.get_replica_context().replica_id_in_sync_group
    return int(tf.get_static_value(number)) == 0
