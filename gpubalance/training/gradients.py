"""Takes a `train_step`'s gradients when it would apply them, and refuses what a split can't train."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine.keras_inside import SUM, summing
from gpubalance.errors import BadInput
from gpubalance.training.changes import SAMPLES, sources
from gpubalance.training.part import Part, current, replaced


@contextlib.contextmanager
def taking_gradients(model: Any) -> Iterator[None]:
    """Makes `model.train_step` hand its gradients to `gradients_of` instead of applying them: they are summed first."""
    optimizer = model.optimizer
    summing(optimizer)
    apply, scale_loss, apply_any = optimizer.apply, optimizer.scale_loss, keras.optimizers.Optimizer.apply

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
        # A loss with a value for each sample has the gradient of their sum, which needs no weight.
        return scale_loss(loss if part.whole or loss.shape.rank else loss * tf.cast(part.weight, loss.dtype))

    def refuse(other: Any, *arguments: Any, **named: Any) -> Any:
        if current.part is None:
            return apply_any(other, *arguments, **named)
        raise BadInput(
            f"the train_step of the model {model.name} applies gradients with {other.name}, which is not the optimizer "
            "that the model was compiled with",
            remedy="train a model with several optimizers, such as a GAN, on one device",
        )

    # In the class of all optimizers, as one may contain others.
    with (
        replaced(keras.optimizers.Optimizer, **{SUM: list, "apply": refuse}),
        replaced(optimizer, apply=take, scale_loss=weigh),
    ):
        yield


def gradients_of(model: Any, part: Part, data: Any) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """Runs `model.train_step`, the user's own if there is one: its gradients, their variables, and its logs."""
    logs = model.train_step(data)
    if len(part.taken) > 1:
        raise BadInput(
            f"the train_step of the model {model.name} applies gradients {len(part.taken)} times, not once",
            remedy="such a model can't be trained with a split",
        )
    if part.behind_masks:
        raise BadInput(
            f"the layer {part.behind_masks[0]} gets a mask: there Keras does not synchronise batch normalisation",
            remedy="with synchronized=False each device normalises its own samples; LayerNormalization is exact",
        )
    _check_own_changes(model, part)
    if not part.taken:
        return [], [], logs
    grads, variables = part.taken[0]
    if not part.is_scaled:
        _refuse_unscaled(model)
    return (grads if part.is_scaled and not part.whole else _weighed(grads, part.weight)), variables, logs


def _weighed(grads: Sequence[Any], weight: Any) -> list[Any]:
    return [None if grad is None else tf.math.scalar_mul(tf.cast(weight, grad.dtype), grad) for grad in grads]


def _refuse_unscaled(model: Any) -> None:
    """Raises BadInput unless the gradients are a mean's, as a `train_step` without `optimizer.scale_loss` must have."""
    losses = [] if model._compile_loss is None else keras.tree.flatten(model._compile_loss._user_loss)
    if any(getattr(layer, "synchronized", False) for layer in model._flatten_layers()):
        needs = "synchronised layers need"
    elif any(getattr(loss, "reduction", "") in ("none", None) for loss in losses):
        needs = "a loss without a reduction needs"
    else:
        return
    raise BadInput(
        f"the train_step of the model {model.name} does not scale its loss, which {needs}",
        remedy="loss = self.optimizer.scale_loss(loss), before the gradients are taken",
    )


def _check_own_changes(model: Any, part: Part) -> None:
    """Warns of weights that a `train_step` changes by itself; raises BadInput if the devices' copies would differ."""
    weights, trainable = ({id(one) for one in of} for of in (model.weights, model.trainable_variables))
    step = f"the train_step of the model {model.name}"
    for change in part.changes:
        own = id(change.variable) in trainable
        if change.late and id(change.variable) in weights and (own or _handles(model) & sources(change.value)):
            raise BadInput(
                f"{step} changes {change.variable.path} after it applies gradients, but a split applies them when the "
                "train_step is over",
                remedy="change it in a callback: on_train_batch_end",
            )
    if not any(id(change.variable) in trainable and SAMPLES in sources(change.value) for change in part.changes):
        return
    if not part.taken:
        raise BadInput(
            f"{step} changes weights without its optimizer: each device would get weights of its own",
            remedy="self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))",
        )
    warnings.warn(
        f"{step} changes weights before it applies gradients, as SAM does: with each device's own gradients, so the "
        "result is not exactly that of one device",
        stacklevel=2,
    )


def _handles(model: Any) -> set[int]:
    """The ids of the handles of all trainable weights, on every device."""
    variables = [variable.value for variable in model.trainable_variables]
    return {id(local.handle) for variable in variables for local in getattr(variable, "values", (variable,))}
