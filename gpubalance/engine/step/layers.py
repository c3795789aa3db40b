"""A model's layers over parts of a batch: what they add to the loss, and what they can't do together."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine.step.changes import is_keras_own
from gpubalance.engine.step.part import Added, current, replaced
from gpubalance.system.versions import numbers

# Keras divides what a regularizer of activities returns by the layer's samples since this version.
_DIVIDES = numbers(keras.__version__) >= (3, 14)


@contextlib.contextmanager
def meeting(model: Any) -> Iterator[None]:
    """Makes what layers add to the loss sum to one device's, by its power.

    Each part also notes its synchronised batch normalisation behind masks.
    """
    with contextlib.ExitStack() as undo:
        for layer in model._flatten_layers():
            regularizer = getattr(layer, "activity_regularizer", None)
            if regularizer:
                undo.enter_context(replaced(layer, activity_regularizer=_weighed(layer, regularizer)))
            if not is_keras_own(layer):
                undo.enter_context(replaced(layer, add_loss=_added(layer)))
            if isinstance(layer, keras.layers.BatchNormalization):
                undo.enter_context(replaced(layer, _moments=_noted(layer)))
        yield


def _added(layer: Any) -> Callable[[Any], Any]:
    """A layer's `add_loss`. Keras takes the sum of a value for each sample."""
    add_loss = layer.add_loss
    return lambda losses: add_loss(
        keras.tree.map_structure(
            lambda loss: _share(Added(layer.name, loss, divided=False, is_regularizer=False)), losses
        )
    )


def _weighed(layer: Any, regularizer: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A regularizer of activities."""
    return lambda output: _share(Added(layer.name, regularizer(output), _DIVIDES, is_regularizer=True))


def _share(added: Added) -> Any:
    """What is added, so that times the part's weight it is the part's share."""
    part = current.part
    if part is None or part.whole:
        return added.loss
    place, part.added = part.added, part.added + 1
    if part.probing is not None:
        part.probing.added.append(added)
        exponent = part.probing.exponents[place]
    else:
        exponent = part.verdict.exponent(place)
        if not exponent:
            return added.loss
    return added.loss * tf.cast(part.weight**exponent, added.loss.dtype)


def _noted(layer: Any) -> Callable[..., Any]:
    """A `_moments` that notes a masked call. It raises nothing: Keras would wrap the error in its own words."""
    moments = layer._moments

    def of(inputs: Any, mask: Any) -> Any:
        part = current.part
        if part is not None and mask is not None and layer.synchronized:
            part.behind_masks.append(layer.name)
        return moments(inputs, mask) if part is None or part.probing is None else _fixed_moments(layer, inputs)

    return of


def _fixed_moments(layer: Any, inputs: Any) -> tuple[Any, Any]:
    """A mean of 0 and a variance of 1, with which the parts of a batch are tried: theirs would differ."""
    channels = (inputs.shape[layer.axis],)
    return tf.zeros(channels, inputs.dtype), tf.ones(channels, inputs.dtype)
