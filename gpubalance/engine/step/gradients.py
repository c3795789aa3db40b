"""Takes a `train_step`'s gradients when it would apply them, and refuses what a split
can't train.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine.keras_inside import SUM, summing
from gpubalance.engine.sources import SAMPLES, sources
from gpubalance.engine.step.part import Part, in_parts, replaced
from gpubalance.errors import BadInput

# TensorFlow's functions that divide by the number of replicas, and what to do instead.
_DIVIDING = {
    "compute_average_loss": "take the mean over samples: ops.mean(loss)",
    "scale_regularization_loss": "add the losses as they are",
}


@contextlib.contextmanager
def taking_gradients(model: Any) -> Iterator[None]:
    """Makes `model.train_step` hand its gradients to `gradients_of` instead of applying them: they
    are summed first.
    """
    optimizer = model.optimizer
    summing(optimizer)
    weights = {id(variable): variable.path for variable in model.trainable_variables}

    def take(part: Part, _: Any, grads: Any, trainable_variables: Any = None) -> None:
        graph = tf.compat.v1.get_default_graph()
        # A branch or a loop has its own.
        part.taken_inside = part.taken_inside or part.graph not in (None, graph)
        part.taken_after = len(graph.get_operations())
        part.taken.append((list(grads), list(trainable_variables or model.trainable_variables)))

    def weigh(part: Part, scale_loss: Any, loss: Any) -> Any:
        part.is_scaled = True
        # A loss with a value for each sample has the gradient of their sum, which needs no weight.
        weighed = loss if part.whole or loss.shape.rank else loss * tf.cast(part.weight, loss.dtype)
        # A tried part's gradients must not overflow.
        return scale_loss(weighed) if part.probing is None else weighed

    def another(_: Part, __: Any, other: Any, *arguments: Any, **named: Any) -> Any:
        del arguments, named
        raise BadInput(
            f"the train_step of the model {model.name} applies gradients with {other.name}, "
            "which is not the optimizer "
            "that the model was compiled with",
            remedy="train a model with several optimizers, such as a GAN, on one device",
        )

    def begun(part: Part, enter: Any, tape: Any) -> Any:
        """`__enter__`, which watches weights that a tried part has changed, as SAM does: they are
        tensors there.
        """
        enter(tape)
        if part.probing is not None:
            tape.watch(
                [change.variable.value for change in part.changes if id(change.variable) in weights]
            )
        return tape

    def of_loss(
        part: Part,
        gradient: Any,
        tape: Any,
        target: Any,
        sources: Any,
        *arguments: Any,
        **named: Any,
    ) -> Any:
        """`gradient`, which notes its target first."""
        if part.probing is not None:
            part.probing.targets += tf.nest.flatten(target)
            changed = {id(change.variable) for change in part.changes}
            sources = tf.nest.map_structure(
                lambda one: one.value if id(one) in changed else one, sources
            )
        return gradient(tape, target, sources, *arguments, **named)

    with (
        inlined(model),
        in_parts(tf.nn, **{name: _divides(model, name) for name in _DIVIDING}),
        _refusing_by_hand(model),
        # In the class of all optimizers, as one may contain others.
        replaced(keras.optimizers.Optimizer, **{SUM: list}),
        # The model's own first: in the class it would be another's.
        in_parts(optimizer, apply=take, scale_loss=weigh),
        in_parts(keras.optimizers.Optimizer, apply=another),
        in_parts(tf.GradientTape, __enter__=begun, gradient=of_loss),
    ):
        yield


def _divides(model: Any, name: str) -> Any:
    def refuse(*_: Any, **__: Any) -> Any:
        raise BadInput(
            f"the model {model.name} calls tf.nn.{name}, which divides by the number of "
            "devices: a split does so",
            remedy=_DIVIDING[name],
        )

    return refuse


@contextlib.contextmanager
def inlined(model: Any) -> Iterator[None]:
    """Makes methods of a user's model that are a `tf.function` parts of the step: theirs keeps
    gradients to itself.
    """
    with contextlib.ExitStack() as undo:
        for owner in type(model).__mro__:
            for name, method in list(vars(owner).items()):
                is_of_steps = name in ("train_step", "test_step") or not hasattr(keras.Model, name)
                if is_of_steps and isinstance(method, tf.types.experimental.PolymorphicFunction):
                    undo.enter_context(replaced(owner, **{name: _converted(method)}))
        yield


def _converted(function: Any) -> Any:
    """The Python function of a `tf.function`, with control flow on tensors as there."""
    if getattr(function, "_autograph", True):
        # For want of source code, then a `tf.function` leaves it as it is too.
        with contextlib.suppress(Exception):
            return tf.autograph.to_graph(function.python_function)
    return function.python_function


@contextlib.contextmanager
def _refusing_by_hand(model: Any) -> Iterator[None]:
    """Refuses TensorFlow's assignments to a weight inside a part's step: each device would get
    weights of its own.
    """
    weights = {id(variable._value): variable.path for variable in model.trainable_variables}

    def change(part: Part, assign: Any, variable: Any, *arguments: Any, **named: Any) -> Any:
        if not part.assigns and id(variable) in weights:
            raise BadInput(
                f"the train_step of the model {model.name} assigns to {weights[id(variable)]} "
                "through "
                "TensorFlow: each device would get weights of its own",
                remedy=(
                    "train it with self.optimizer.apply_gradients, or in a callback: "
                    "on_train_batch_end"
                ),
            )
        return assign(variable, *arguments, **named)

    kinds = {type(variable._value) for variable in model.trainable_variables}
    with contextlib.ExitStack() as undo:
        for name in ("assign", "assign_add", "assign_sub"):
            for owner in {next(one for one in kind.__mro__ if name in vars(one)) for kind in kinds}:
                undo.enter_context(in_parts(owner, **{name: change}))
        yield


def gradients_of(model: Any, part: Part, data: Any) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """Runs `model.train_step`, the user's own if there is one: its gradients, their variables, and
    its logs.
    """
    part.graph = tf.compat.v1.get_default_graph()
    logs = model.train_step(data)
    problem = next(_problems(model, part), None)
    if problem:
        raise BadInput(problem[0], remedy=problem[1])
    if _changes_weights(model, part):
        part.tell(
            f"the train_step of the model {model.name} changes weights before it applies "
            "gradients, as SAM does: with "
            "each device's own gradients, so the result is not exactly that of one device"
        )
    if not part.taken:
        return [], [], logs
    grads, variables = part.taken[0]
    return (
        (grads if part.is_scaled and not part.whole else _weighed(grads, part.weight)),
        variables,
        logs,
    )


def _weighed(grads: Sequence[Any], weight: Any) -> list[Any]:
    return [
        None if grad is None else tf.math.scalar_mul(tf.cast(weight, grad.dtype), grad)
        for grad in grads
    ]


def _problems(model: Any, part: Part) -> Iterator[tuple[str, str]]:
    """Why a split can't train what the step of a part did, and what to do."""
    step = f"the train_step of the model {model.name}"
    if part.taken_inside:
        inside = (
            f"{step} applies gradients under a condition or in a loop, but a split applies them "
            "once in each step"
        )
        yield (
            inside,
            "apply them outside of it; to accumulate gradients, give a Split micro_batches=",
        )
    if len(part.taken) > 1:
        several = f"{step} applies gradients {len(part.taken)} times, not once"
        yield several, "such a model can't be trained with a split"
    for layer in part.behind_masks:
        yield (
            f"the layer {layer} gets a mask: there Keras does not synchronise batch normalisation",
            "with synchronized=False each device normalises its own samples; "
            "LayerNormalization is exact",
        )
    trained, in_a_callback = (
        handles(model.trainable_variables),
        "change it in a callback: on_train_batch_end",
    )
    for variable in _changed_late(model, part, trained):
        late = (
            f"{step} changes {variable.path} after it applies gradients, but a split applies them "
            "when the "
        )
        yield f"{late}train_step is over", in_a_callback
    for variable in _changed_by_samples(part, model.optimizer.variables):
        yield (
            f"{step} sets {variable.path} by what it computes from samples: each device would "
            "set its own",
            in_a_callback,
        )
    if not part.taken:
        if _changes_weights(model, part):
            by_itself = (
                f"{step} changes weights without its optimizer: each device would get weights of "
                "its own"
            )
            yield (
                by_itself,
                "self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))",
            )
    elif all(grad is None for grad in part.taken[0][0]):
        remedy = (
            "compute the loss inside the tape, and scale it there: loss = "
            "self.optimizer.scale_loss(loss)"
        )
        yield f"{step} gets no gradient for any weight", remedy
    elif not part.is_scaled and (needs := _what_needs_scaling(model)):
        remedy = "loss = self.optimizer.scale_loss(loss), before the gradients are taken"
        yield f"{step} does not scale its loss, which {needs}", remedy


def _what_needs_scaling(model: Any) -> str:
    """What a `train_step` without `optimizer.scale_loss` must not have, as its gradients are those
    of a mean.
    """
    losses = (
        [] if model._compile_loss is None else keras.tree.flatten(model._compile_loss._user_loss)
    )
    if any(getattr(layer, "synchronized", False) for layer in model._flatten_layers()):
        return "synchronised layers need"
    unreduced = [loss for loss in losses if getattr(loss, "reduction", "") in ("none", None)]
    return "a loss without a reduction needs" if unreduced else ""


def _changed_late(model: Any, part: Part, trained: set[int]) -> Iterator[Any]:
    """Trained weights or the optimizer's, changed after gradients were applied; others, changed by
    what was trained.
    """
    at_once = {id(one) for one in (*model.trainable_variables, *model.optimizer.variables)}
    weights = {id(one) for one in model.weights}
    for change in part.changes:
        key = id(change.variable)
        if change.late and (key in at_once or (key in weights and trained & sources(change.value))):
            yield change.variable


def _changes_weights(model: Any, part: Part) -> bool:
    """Whether a step changes weights by itself, by what it computes from samples."""
    return next(_changed_by_samples(part, model.trainable_variables), None) is not None


def _changed_by_samples(part: Part, variables: Sequence[Any]) -> Iterator[Any]:
    """Those of the variables that a step assigns what it computes from samples."""
    known, states = {id(one) for one in variables}, part.probing.states if part.probing else ()
    changes = (change for change in part.changes if id(change.variable) in known)
    return (change.variable for change in changes if SAMPLES in sources(change.value, states))


def handles(variables: Any) -> set[int]:
    """The ids of the variables' handles, on every device."""
    # Their `value` may be one that a scope has for them.
    values = [variable._value for variable in variables]
    return {id(local.handle) for value in values for local in getattr(value, "values", (value,))}
