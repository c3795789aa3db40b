"""A `train_step`'s gradients, taken where it would apply them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from gpubalance.engine.keras_inside import SUM, summing
from gpubalance.errors import BadInput
from gpubalance.training.part import Part, current, replaced


@contextlib.contextmanager
def taking_gradients(model: Any) -> Iterator[None]:
    """`model.train_step` hands its gradients to `gradients_of` instead of applying them; they are summed first."""
    optimizer = model.optimizer
    apply, scale_loss = optimizer.apply, optimizer.scale_loss

    def take(grads: Any, trainable_variables: Any = None) -> Any:
        part = current.part
        if part is None:
            return apply(grads, trainable_variables)
        part.taken.append((list(grads), list(trainable_variables or model.trainable_variables)))
        return None

    def weigh(loss: Any) -> Any:
        part = current.part
        if part is None:
            return scale_loss(loss)
        part.is_scaled = True
        return scale_loss(loss * tf.cast(part.weight, loss.dtype))

    with replaced(summing(optimizer), **{SUM: list}), replaced(optimizer, apply=take, scale_loss=weigh):
        yield


def gradients_of(model: Any, part: Part, data: Any) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """The gradients of `model.train_step`, the user's own where there is one, their variables, and its logs."""
    logs = model.train_step(data)
    if len(part.taken) > 1:
        raise BadInput(
            f"the train_step of the model {model.name} applies gradients {len(part.taken)} times, not once",
            remedy="such a model can't be trained with a split",
        )
    if not part.taken:
        return [], [], logs
    grads, variables = part.taken[0]
    return (grads if part.is_scaled else _weighed(model, grads, part.weight)), variables, logs


def _weighed(model: Any, grads: Sequence[Any], weight: Any) -> list[Any]:
    """A `train_step` that does not call `optimizer.scale_loss` has the unweighted loss's gradients: weighs those."""
    if any(getattr(layer, "synchronized", False) for layer in model._flatten_layers()):
        raise BadInput(
            f"the train_step of the model {model.name} does not scale its loss, which synchronised layers need",
            remedy="loss = self.optimizer.scale_loss(loss), before the gradients are taken",
        )
    return [None if grad is None else tf.math.scalar_mul(tf.cast(weight, grad.dtype), grad) for grad in grads]
