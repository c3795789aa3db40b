"""Keras' metrics over parts of a batch."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.metrics import reduction_metrics

from gpubalance.training.added import adding
from gpubalance.training.kinds import Kind, kind_of
from gpubalance.training.part import current, replaced

ORIGINAL: Any = getattr(reduction_metrics, "reduce_to_samplewise_values", None)


def take_over() -> None:
    """Makes Keras' means and sums weigh each replica's part from now on."""
    reduction_metrics.reduce_to_samplewise_values = _samplewise


@contextlib.contextmanager
def counting(model: Any) -> Iterator[None]:
    """Makes the metrics of a built model count each sample once, and each part note which results its step asks for."""
    found = (*model.metrics, *keras.Model.metrics.fget(model))  # a user's own property may leave some out
    trackers = list(model._compile_loss.metrics) if model._compile_loss is not None else []
    metrics = {id(metric): metric for metric in (*_all(found), *trackers)}
    with contextlib.ExitStack() as undo:
        undo.enter_context(adding(metrics.values()))
        for metric in metrics.values():
            undo.enter_context(replaced(metric, update_state=_counted(metric), result=_noted(metric)))
        yield


def _counted(metric: Any) -> Callable[..., Any]:
    update = metric.update_state

    def counted(*arguments: Any, **named: Any) -> Any:
        """`update_state` for this thread's part of the global batch, if that part counts."""
        if current.part is not None:
            current.part.metric = metric.name
        return update(*arguments, **named) if current.part is None or current.part.counts else None

    return counted


def _noted(metric: Any) -> Callable[[], Any]:
    result = metric.result

    def noted() -> Any:
        """`result`, of which this thread's part knows the tensors again."""
        part, found = current.part, result()
        if part is None:
            return found
        tensors = [tf.identity(tf.convert_to_tensor(one)) for one in keras.tree.flatten(found)]
        part.results |= {id(tensor): (tensor, metric, at) for at, tensor in enumerate(tensors)}
        return keras.tree.pack_sequence_as(found, tensors)

    return noted


def _samplewise(values: Any, sample_weight: Any, reduce_fn: Callable[..., Any], dtype: Any) -> Any:
    """Keras' own, changed so that one number for a batch, such as a mean, has the part's `weight` in the global one.

    The parts' sums, and what they count, sum to the global batch's. Anything else is told.
    """
    part = current.part
    one_number = not _rank(values) or (sample_weight is not None and reduce_fn is keras.ops.mean)
    fixed = sample_weight is None or (not _rank(sample_weight) and tf.get_static_value(sample_weight) is not None)
    if part is None or part.whole or not (one_number and fixed):
        return ORIGINAL(values, sample_weight, reduce_fn, dtype)
    if not _rank(values):
        kind = kind_of(values, part.weight)
        if kind in (Kind.SUM, Kind.COUNT):
            values = tf.cast(values, dtype) / tf.cast(part.weight, dtype)
        elif kind is Kind.OTHER:
            warnings.warn(
                f"the metric {part.metric} gets one number a batch that is neither a mean nor a sum over samples: the "
                "devices' numbers are averaged, weighted by samples, which is not exactly what one device would log; "
                "give it a value for each sample",
                stacklevel=2,
            )
    weight = tf.cast(part.weight, dtype) * (1 if sample_weight is None else sample_weight)
    return ORIGINAL(values, weight, reduce_fn, dtype)


def _rank(values: Any) -> int:
    return len(getattr(values, "shape", ()))


def _all(metrics: Any) -> list[Any]:
    """The metrics and those inside them."""
    return [one for metric in metrics for one in (metric, *_all(getattr(metric, "metrics", metric._metrics)))]
