"""A model's layers over parts of a batch: what they add to the loss, and what they can't do together."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from gpubalance.system.versions import numbers
from gpubalance.training.changes import is_keras_own
from gpubalance.training.part import current, replaced

_SUMS_ACTIVITIES = numbers(keras.__version__) < (3, 14)


@contextlib.contextmanager
def meeting(model: Any) -> Iterator[None]:
    """Makes what layers add to the loss sum to one device's, for a mean over samples and for a value for each.

    Each part also notes its synchronised batch normalisation behind masks.
    """
    layers = model._flatten_layers()
    with contextlib.ExitStack() as undo:
        for layer in layers:
            if getattr(layer, "activity_regularizer", None):
                undo.enter_context(replaced(layer, activity_regularizer=_weighed(layer.activity_regularizer)))
            if not is_keras_own(layer):
                undo.enter_context(replaced(layer, add_loss=_added(layer)))
            if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized:
                undo.enter_context(replaced(layer, _moments=_noted(layer)))
        yield


def _added(layer: Any) -> Callable[[Any], Any]:
    """A layer's `add_loss` for values that have one for each sample, of which Keras takes the sum."""
    add_loss = layer.add_loss

    def weighed(loss: Any) -> Any:
        if current.part is not None and not loss.shape.rank:
            current.part.added.append((layer.name, loss))
        return _of_sum(loss) if loss.shape.rank and loss.shape[0] is None else loss

    return lambda losses: add_loss(keras.tree.map_structure(weighed, losses))


def _weighed(regularizer: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A regularizer of activities for parts. Keras' own give sums, which layers divide by samples since Keras 3.14."""
    if not is_keras_own(regularizer) and _is_mean(regularizer):
        return regularizer if _SUMS_ACTIVITIES else lambda output: _of_mean(regularizer(output))
    return (lambda output: _of_sum(regularizer(output))) if _SUMS_ACTIVITIES else regularizer


def _is_mean(regularizer: Callable[[Any], Any]) -> bool:
    """Whether two samples give what one gives, as far as a regularizer takes outputs of one axis."""
    with tf.init_scope():
        try:
            one, two = (float(regularizer(tf.ones((samples, 4)))) for samples in (1, 2))
        except Exception:  # noqa: BLE001 - whatever it raises for another shape: `own_step` tries it with its layer's
            return False
    return one != 0 and abs(two - one) < 1e-3 * abs(one)


def _of_mean(loss: Any) -> Any:
    """A mean over the part, which its layer divides by the part's samples: a mean over the batch, divided by all."""
    part = current.part
    return loss if part is None or part.whole else loss * tf.cast(part.weight, loss.dtype)


def _of_sum(loss: Any) -> Any:
    """A sum over the batch, as Keras before 3.14 makes of activities, so that times the part's weight it is itself."""
    part = current.part
    return loss if part is None or part.whole else loss / tf.cast(part.weight, loss.dtype)


def _noted(layer: Any) -> Callable[..., Any]:
    """A `_moments` that notes a masked call. It raises nothing: Keras would wrap the error in its own words."""
    moments = layer._moments

    def of(inputs: Any, mask: Any) -> Any:
        if mask is not None and current.part is not None:
            current.part.behind_masks.append(layer.name)
        return moments(inputs, mask)

    return of
