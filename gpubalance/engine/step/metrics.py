"""The results of metrics that a step asks for: in its logs, those over all parts take their place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine.step.part import current, replaced


@contextlib.contextmanager
def noting_results(model: Any) -> Iterator[None]:
    """Makes each part note which results of a built model's metrics its step asks for."""
    with contextlib.ExitStack() as undo:
        for metric in metrics_of(model):
            undo.enter_context(replaced(metric, result=_noted(metric)))
        yield


def metrics_of(model: Any) -> list[Any]:
    """All metrics of a model, those of its compiled loss and those inside others too."""
    found = (*model.metrics, *keras.Model.metrics.fget(model))  # a user's own property may leave some out
    trackers = list(model._compile_loss.metrics) if model._compile_loss is not None else []
    return list({id(metric): metric for metric in (*_all(found), *trackers)}.values())


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


def _all(metrics: Any) -> list[Any]:
    """The metrics and those inside them."""
    return [one for metric in metrics for one in (metric, *_all(getattr(metric, "metrics", metric._metrics)))]
