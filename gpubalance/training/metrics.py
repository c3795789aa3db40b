"""Keras' metrics over parts of a batch."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.metrics import reduction_metrics

from gpubalance.training.changes import SAMPLES, adds, is_keras_own, sources
from gpubalance.training.part import Part, current, replaced

ORIGINAL: Any = getattr(reduction_metrics, "reduce_to_samplewise_values", None)


def take_over() -> None:
    """Makes Keras' means and sums weigh each replica's part from now on."""
    reduction_metrics.reduce_to_samplewise_values = _samplewise


@contextlib.contextmanager
def counting(model: Any) -> Iterator[None]:
    """Makes the metrics of a built model count each sample once."""
    trackers = list(model._compile_loss.metrics) if model._compile_loss is not None else []
    metrics = {id(metric): metric for metric in (*_all(model.metrics), *trackers)}
    with contextlib.ExitStack() as undo:
        for metric in metrics.values():
            undo.enter_context(replaced(metric, update_state=_counted(metric)))
        yield


def _counted(metric: Any) -> Callable[..., Any]:
    update = metric.update_state

    def counted(*arguments: Any, **named: Any) -> Any:
        """`update_state` for this thread's part of the global batch, if that part counts."""
        if current.part is not None:
            current.part.metric = metric.name
        return update(*arguments, **named) if current.part is None or current.part.counts else None

    return counted


def _samplewise(values: Any, sample_weight: Any, reduce_fn: Callable[..., Any], dtype: Any) -> Any:
    """Keras' own, changed so that one number for a batch, such as a mean, has the part's `weight` in the global one.

    A computed integer is a count: the parts' counts sum to the global batch's.
    """
    part = current.part
    one_number = not _rank(values) or (sample_weight is not None and reduce_fn is keras.ops.mean)
    fixed = sample_weight is None or (not _rank(sample_weight) and tf.get_static_value(sample_weight) is not None)
    if part is None or part.whole or not (one_number and fixed):
        return ORIGINAL(values, sample_weight, reduce_fn, dtype)
    if tf.is_symbolic_tensor(values) and tf.get_static_value(values) is None:
        if values.dtype.is_integer:
            values = tf.cast(values, dtype) / tf.cast(part.weight, dtype)
        elif reduce_fn is keras.ops.sum:
            warnings.warn(
                f"the metric {part.metric} adds up one number a batch: the devices' numbers are averaged by samples, "
                "which is exact only for a mean over samples; give it a value for each sample",
                stacklevel=2,
            )
    weight = tf.cast(part.weight, dtype) * (1 if sample_weight is None else sample_weight)
    return ORIGINAL(values, weight, reduce_fn, dtype)


def _rank(values: Any) -> int:
    return len(getattr(values, "shape", ()))


def warn_of_set_state(model: Any, part: Part) -> None:
    """Warns if a user's metric sets its state instead of adding to it, as Keras sums the state over devices."""
    owners = {id(variable): metric for metric in _all(model.metrics) for variable in metric._variables}
    for change in part.changes:
        metric = owners.get(id(change.variable))
        if metric is None or is_keras_own(metric) or adds(change.value) or SAMPLES not in sources(change.value):
            continue
        warnings.warn(
            f"the metric {metric.name} sets {change.variable.name} instead of adding to it: the devices' values are "
            "summed, which is not what one device would log",
            stacklevel=2,
        )


def _all(metrics: Any) -> list[Any]:
    """The metrics and those inside them."""
    return [one for metric in metrics for one in (metric, *_all(getattr(metric, "metrics", metric._metrics)))]
