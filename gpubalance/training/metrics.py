"""Keras' metrics over parts of a batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from gpubalance.system.versions import numbers
from gpubalance.training.part import current, replaced

_SUMS_ACTIVITIES = numbers(keras.__version__) < (3, 14)


@contextlib.contextmanager
def by_parts(model: Any) -> Iterator[None]:
    """The metrics of a model that is built count each sample once, and weigh all of them alike.

    Before 3.14 Keras takes an activity regulariser's sum over the batch, not its mean: its weight is 1 then.
    """
    trackers = list(model._compile_loss.metrics) if model._compile_loss is not None else []
    metrics = {id(metric): metric for metric in (*model.metrics, *trackers)}
    regularised = [layer for layer in model._flatten_layers() if getattr(layer, "activity_regularizer", None)]
    with contextlib.ExitStack() as undo:
        for metric in metrics.values():
            undo.enter_context(replaced(metric, update_state=_counted(metric, metric.update_state)))
        for layer in regularised if _SUMS_ACTIVITIES else []:
            undo.enter_context(replaced(layer, activity_regularizer=_summed(layer.activity_regularizer)))
        yield


def _summed(regularizer: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def over_the_batch(output: Any) -> Any:
        part, loss = current.part, regularizer(output)
        return loss if part is None or part.whole else loss / tf.cast(part.weight, loss.dtype)

    return over_the_batch


def _counted(metric: Any, update: Callable[..., Any]) -> Callable[..., Any]:
    takes_values = isinstance(metric, keras.metrics.Mean) and not isinstance(metric, keras.metrics.MeanMetricWrapper)

    def counted(*arguments: Any, **named: Any) -> Any:
        """`update_state` for this thread's part of the global batch."""
        part = current.part
        if part is None:
            return update(*arguments, **named)
        if not part.counts:
            return None
        unweighted = len(arguments) < 2 and named.get("sample_weight") is None
        value = arguments[0] if arguments else named.get("values")
        if takes_values and unweighted and not part.whole and len(getattr(value, "shape", ())) == 0:
            # One number for a batch, as a mean loss: the replicas' numbers together count as that one would.
            named = {**named, "sample_weight": part.weight}
        return update(*arguments, **named)

    return counted
