"""Takes a `train_step`'s gradients when it would apply them: they are summed first."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

import keras
import tensorflow as tf

from gpubalance.engine import keras_patches
from gpubalance.engine.keras_patches import check_optimizer
from gpubalance.engine.replacing import Method, acting
from gpubalance.engine.step.fused_updates import fused_updates
from gpubalance.engine.step.part import Part, PartReplacements
from gpubalance.engine.step.problems import changed_by_samples, refuse_problems
from gpubalance.errors import BadInput

# TensorFlow's functions that divide by the number of replicas, and what to do instead.
_DIVIDING = {
    keras_patches.AVERAGE_LOSS: "take the mean over samples: ops.mean(loss)",
    keras_patches.SCALE_REGULARIZATION: "add the losses as they are",
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


def taking_gradients(model: Any) -> PartReplacements:
    """What makes `model.train_step` hand its gradients to `gradients_of` instead of applying them.

    Raises BadInput for an optimizer with an option that Keras does not support under a strategy.
    """
    optimizer = model.optimizer
    check_optimizer(optimizer)
    refuse = partial(_refuse_another, model)
    replacements = inlined(model) | _refusing_by_hand(model) | _noting_tapes(model)
    for division, instead in _DIVIDING.items():
        replacements[division] = partial(
            _refuse_division, model, division.name, instead
        )
    # In the class of all optimizers, as one may contain others.
    replacements[keras_patches.OPTIMIZER_APPLY] = refuse
    replacements[keras_patches.LOSS_SCALE_APPLY] = refuse
    replacements[Method.of(optimizer, "apply")] = partial(_take, model)
    replacements[Method.of(optimizer, "scale_loss")] = _scale_loss
    return replacements


def applying_sums() -> contextlib.AbstractContextManager[None]:
    """Makes optimizers apply gradients as they are: they are summed over the replicas already.

    Those of which TensorFlow has a kernel use it.
    """
    return acting({keras_patches.OPTIMIZER_SUM: _as_they_are, **fused_updates()})


def _as_they_are(_: Any, __: Any, gradients_and_variables: Any) -> Any:
    return list(gradients_and_variables)


def _take(
    model: Any,
    part: Part,
    _: Any,
    __: Any,
    grads: Any,
    trainable_variables: Any = None,
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


def _scale_loss(part: Part, scale_loss: Any, optimizer: Any, loss: Any) -> Any:
    """An optimizer's `scale_loss`, which weighs the loss."""
    part.is_scaled = True
    # A loss with a value for each sample has the gradient of their sum, which needs no weight.
    if not part.replicated and not loss.shape.rank:
        loss = loss * tf.cast(part.weight, loss.dtype)
    # A tried part's gradients must not overflow.
    return scale_loss(optimizer, loss) if part.probing is None else loss


def _noting_tapes(model: Any) -> PartReplacements:
    """What makes gradient tapes of the parity check note their targets, and follow changed weights.

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

    return {keras_patches.ENTER_TAPE: enter, keras_patches.TAPE_GRADIENT: gradient}


def _refuse_division(
    model: Any, name: str, instead: str, *_: Any, **__: Any
) -> NoReturn:
    raise BadInput(
        f"the model {model.name} calls tf.nn.{name}, which divides by the number of devices: a "
        "split does so",
        remedy=instead,
    )


def inlined(model: Any) -> PartReplacements:
    """What makes methods of a user's model that are a `tf.function` parts of the step.

    A `tf.function` would keep its gradients to itself.
    """
    replacements: PartReplacements = {}
    for owner in type(model).__mro__:
        for name in list(vars(owner)):
            is_of_steps = name in ("train_step", "test_step") or not hasattr(
                keras.Model, name
            )
            function = Method(owner, name).original()
            if is_of_steps and isinstance(
                function, tf.types.experimental.PolymorphicFunction
            ):
                replacements[Method(owner, name)] = partial(
                    _call_inlined, _python_function(function)
                )
    return replacements


def _call_inlined(
    function: Any, _: Part, __: Any, *arguments: Any, **named: Any
) -> Any:
    return function(*arguments, **named)


def _python_function(function: Any) -> Any:
    """The Python function of a `tf.function`, with control flow on tensors as there."""
    if getattr(function, "_autograph", True):
        # For want of source code, then a `tf.function` leaves it as it is too.
        with contextlib.suppress(Exception):
            return tf.autograph.to_graph(function.python_function)
    return function.python_function


def _refusing_by_hand(model: Any) -> PartReplacements:
    """What refuses TensorFlow's assignments to a weight inside a part's step.

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

    replacements: PartReplacements = {}
    for variable in model.trainable_variables:
        for assignment in keras_patches.assignments(variable):
            replacements[assignment] = change
    return replacements
