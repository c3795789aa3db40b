"""Takes a `train_step`'s gradients when it would apply them: they are summed first."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NoReturn

import keras
import tensorflow as tf

from gpubalance.engine.keras_inside import SUM, summing
from gpubalance.engine.replaced import replaced
from gpubalance.engine.step.part import Part, replaced_in_parts
from gpubalance.engine.step.problems import changed_by_samples, refuse_problems
from gpubalance.errors import BadInput

# TensorFlow's functions that divide by the number of replicas, and what to do instead.
_DIVIDING = {
    "compute_average_loss": "take the mean over samples: ops.mean(loss)",
    "scale_regularization_loss": "add the losses as they are",
}


def gradients_of(model: Any, part: Part) -> tuple[list[Any], list[Any]]:
    """The gradients that the part's `train_step` has applied, and their variables.

    Raises BadInput for what a split can't train.
    """
    refuse_problems(model, part)
    if changed_by_samples(part, model.trainable_variables):
        part.warn(
            f"the train_step of the model {model.name} changes weights before it applies "
            "gradients, as SAM does: with each device's own gradients, so the result is not "
            "exactly that of one device"
        )
    if not part.applied:
        return [], []
    grads, variables = part.applied[0]
    if part.replicated or not part.is_scaled:
        grads = _weighed(grads, part.weight)
    return grads, variables


def _weighed(grads: Sequence[Any], weight: Any) -> list[Any]:
    weighed = []
    for grad in grads:
        if grad is not None:
            grad = tf.math.scalar_mul(tf.cast(weight, grad.dtype), grad)
        weighed.append(grad)
    return weighed


@contextlib.contextmanager
def taking_gradients(model: Any) -> Iterator[None]:
    """Makes `model.train_step` hand its gradients to `gradients_of` instead of applying them."""
    optimizer = model.optimizer
    summing(optimizer)
    refusals = {name: partial(_refuse_division, model, name) for name in _DIVIDING}
    refuse = partial(_refuse_another, model)
    with (
        inlined(model),
        replaced_in_parts(tf.nn, **refusals),
        _refusing_by_hand(model),
        # In the class of all optimizers, as one may contain others.
        replaced(keras.optimizers.Optimizer, **{SUM: list}),
        # The model's own first: in the class it would be another's.
        replaced_in_parts(optimizer, apply=partial(_take, model), scale_loss=_scaled),
        replaced_in_parts(keras.optimizers.Optimizer, apply=refuse),
        # It calls that of the one in it under a condition, and Keras would wrap the refusal.
        replaced_in_parts(keras.optimizers.LossScaleOptimizer, apply=refuse),
        _noting_tapes(model),
    ):
        yield


def _take(
    model: Any, part: Part, _: Any, grads: Any, trainable_variables: Any = None
) -> None:
    """The optimizer's `apply`, which keeps the gradients in the part."""
    graph = tf.compat.v1.get_default_graph()
    # A branch or a loop has its own.
    part.applied_inside = part.applied_inside or part.graph is not graph
    part.operations_before = len(graph.get_operations())
    variables = trainable_variables or model.trainable_variables
    part.applied.append((list(grads), list(variables)))


def _refuse_another(
    model: Any, _: Part, __: Any, other: Any, *arguments: Any, **named: Any
) -> NoReturn:
    """The `apply` of other optimizers."""
    del arguments, named
    raise BadInput(
        f"the train_step of the model {model.name} applies gradients with {other.name}, which is "
        "not the optimizer that the model was compiled with",
        remedy="train a model with several optimizers, such as a GAN, on one device",
    )


def _scaled(part: Part, scale_loss: Any, loss: Any) -> Any:
    """An optimizer's `scale_loss`, which weighs the loss."""
    part.is_scaled = True
    # A loss with a value for each sample has the gradient of their sum, which needs no weight.
    if not part.replicated and not loss.shape.rank:
        loss = loss * tf.cast(part.weight, loss.dtype)
    # A tried part's gradients must not overflow.
    return scale_loss(loss) if part.probing is None else loss


def _noting_tapes(model: Any) -> contextlib.AbstractContextManager[None]:
    """Makes gradient tapes of the parity check note their targets, and follow changed weights.

    There such a weight, as SAM changes it, has a tensor for its value.
    """
    weights = {id(variable) for variable in model.trainable_variables}

    def enter(part: Part, enter_tape: Any, tape: Any) -> Any:
        enter_tape(tape)
        if part.probing is not None:
            changed = [change.variable for change in part.changes]
            tape.watch(
                [variable.value for variable in changed if id(variable) in weights]
            )
        return tape

    def gradient(
        part: Part,
        take: Any,
        tape: Any,
        target: Any,
        sources: Any,
        *arguments: Any,
        **named: Any,
    ) -> Any:
        """In place of the tape's own: `take` is that, and the rest are its arguments."""
        if part.probing is not None:
            part.probing.targets += tf.nest.flatten(target)
            changed = {id(change.variable) for change in part.changes}
            sources = tf.nest.map_structure(
                lambda source: source.value if id(source) in changed else source,
                sources,
            )
        return take(tape, target, sources, *arguments, **named)

    return replaced_in_parts(tf.GradientTape, __enter__=enter, gradient=gradient)


def _refuse_division(model: Any, name: str, *_: Any, **__: Any) -> NoReturn:
    raise BadInput(
        f"the model {model.name} calls tf.nn.{name}, which divides by the number of devices: a "
        "split does so",
        remedy=_DIVIDING[name],
    )


@contextlib.contextmanager
def inlined(model: Any) -> Iterator[None]:
    """Makes methods of a user's model that are a `tf.function` parts of the step.

    A `tf.function` would keep its gradients to itself.
    """
    with contextlib.ExitStack() as undo:
        for owner in type(model).__mro__:
            for name, method in list(vars(owner).items()):
                is_of_steps = name in ("train_step", "test_step") or not hasattr(
                    keras.Model, name
                )
                if is_of_steps and isinstance(
                    method, tf.types.experimental.PolymorphicFunction
                ):
                    undo.enter_context(
                        replaced(owner, **{name: _python_function(method)})
                    )
        yield


def _python_function(function: Any) -> Any:
    """The Python function of a `tf.function`, with control flow on tensors as there."""
    if getattr(function, "_autograph", True):
        # For want of source code, then a `tf.function` leaves it as it is too.
        with contextlib.suppress(Exception):
            return tf.autograph.to_graph(function.python_function)
    return function.python_function


@contextlib.contextmanager
def _refusing_by_hand(model: Any) -> Iterator[None]:
    """Refuses TensorFlow's assignments to a weight inside a part's step.

    Each device would get weights of its own.
    """
    weights = {
        id(variable._value): variable.path for variable in model.trainable_variables
    }

    def change(
        part: Part, assign: Any, variable: Any, *arguments: Any, **named: Any
    ) -> Any:
        """In place of TensorFlow's own assignment, which `assign` is."""
        if not part.assigns and id(variable) in weights:
            raise BadInput(
                f"the train_step of the model {model.name} assigns to {weights[id(variable)]} "
                "through TensorFlow: each device would get weights of its own",
                remedy="train it with self.optimizer.apply_gradients, or in a callback: "
                "on_train_batch_end",
            )
        return assign(variable, *arguments, **named)

    kinds = {type(variable._value) for variable in model.trainable_variables}
    with contextlib.ExitStack() as undo:
        for name in ("assign", "assign_add", "assign_sub"):
            for owner in {_owner_of(name, kind) for kind in kinds}:
                undo.enter_context(replaced_in_parts(owner, **{name: change}))
        yield


def _owner_of(name: str, kind: type) -> type:
    """The class that has a class's method of this name."""
    return next(owner for owner in kind.__mro__ if name in vars(owner))
