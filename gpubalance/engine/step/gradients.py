"""Takes a `train_step`'s gradients when it would apply them, and refuses what a split can't train."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine.keras_inside import SUM, summing
from gpubalance.engine.sources import SAMPLES, sources
from gpubalance.engine.step.changes import handles
from gpubalance.engine.step.part import Part, current, replaced
from gpubalance.errors import BadInput


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
        part.taken_after = len(tf.compat.v1.get_default_graph().get_operations())
        part.taken.append((list(grads), list(trainable_variables or model.trainable_variables)))
        return None

    def weigh(loss: Any) -> Any:
        part = current.part
        if part is None:
            return scale_loss(loss)
        part.is_scaled = True
        # A loss with a value for each sample has the gradient of their sum, which needs no weight.
        weighed = loss if part.whole or loss.shape.rank else loss * tf.cast(part.weight, loss.dtype)
        return scale_loss(weighed) if part.probing is None else weighed  # a tried part's gradients must not overflow

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
        inlined(model),
        _refusing_averages(model),
        _noting_targets(model),
        _refusing_by_hand(model),
        replaced(keras.optimizers.Optimizer, **{SUM: list, "apply": refuse}),
        replaced(optimizer, apply=take, scale_loss=weigh),
    ):
        yield


@contextlib.contextmanager
def _noting_targets(model: Any) -> Iterator[None]:
    """Notes of which losses a tried part takes gradients.

    Weights that it has changed, as SAM does, are tensors there, which a tape must be told of.
    """
    enter, gradient = tf.GradientTape.__enter__, tf.GradientTape.gradient
    weights = {id(variable) for variable in model.trainable_variables}

    def begun(tape: Any) -> Any:
        """`__enter__`, which watches changed weights."""
        enter(tape)
        if current.part is not None and current.part.probing is not None:
            tape.watch([change.variable.value for change in current.part.changes if id(change.variable) in weights])
        return tape

    def of_loss(tape: Any, target: Any, sources: Any, *arguments: Any, **named: Any) -> Any:
        """`gradient`, which notes its target first."""
        part = current.part
        if part is not None and part.probing is not None:
            part.probing.targets += tf.nest.flatten(target)
            changed = {id(change.variable) for change in part.changes}
            sources = tf.nest.map_structure(lambda one: one.value if id(one) in changed else one, sources)
        return gradient(tape, target, sources, *arguments, **named)

    with replaced(tf.GradientTape, __enter__=begun, gradient=of_loss):
        yield


@contextlib.contextmanager
def _refusing_averages(model: Any) -> Iterator[None]:
    """Refuses TensorFlow's functions that divide by the number of replicas."""

    def refusing(name: str, remedy: str) -> Any:
        """The function of that name, which refuses to be called for a part of a batch."""
        original = getattr(tf.nn, name)

        def divided(*arguments: Any, **named: Any) -> Any:
            if current.part is None:
                return original(*arguments, **named)
            raise BadInput(
                f"the model {model.name} calls tf.nn.{name}, which divides by the number of devices: a split does so",
                remedy=remedy,
            )

        return divided

    average, scaled = "compute_average_loss", "scale_regularization_loss"
    remedies = {average: "take the mean over samples: ops.mean(loss)", scaled: "add the losses as they are"}
    with replaced(tf.nn, **{name: refusing(name, remedy) for name, remedy in remedies.items()}):
        yield


@contextlib.contextmanager
def inlined(model: Any) -> Iterator[None]:
    """Makes methods of a user's model that are a `tf.function` parts of the step: theirs keeps gradients to itself."""
    with contextlib.ExitStack() as undo:
        for owner in type(model).__mro__:
            for name, method in list(vars(owner).items()):
                is_of_steps = name in ("train_step", "test_step") or not hasattr(keras.Model, name)
                if is_of_steps and isinstance(method, tf.types.experimental.PolymorphicFunction):
                    undo.enter_context(replaced(owner, **{name: _converted(method)}))
        yield


def _converted(function: Any) -> Any:
    """The Python function of a `tf.function`, with control flow on tensors as there."""
    if not getattr(function, "_autograph", True):
        return function.python_function
    try:
        return tf.autograph.to_graph(function.python_function)
    except Exception:  # noqa: BLE001 - for want of source code, then a `tf.function` leaves it as it is too
        return function.python_function


@contextlib.contextmanager
def _refusing_by_hand(model: Any) -> Iterator[None]:
    """Refuses TensorFlow's assignments to a weight inside a part's step: each device would get weights of its own."""
    weights = {id(variable._value): variable.path for variable in model.trainable_variables}

    def refusing(assign: Any) -> Any:
        """The method `assign`, which refuses a weight in a part's step."""

        def method(variable: Any, *arguments: Any, **named: Any) -> Any:
            """TensorFlow's own, for everything else."""
            part = current.part
            if part is not None and not part.assigns and id(variable) in weights:
                raise BadInput(
                    f"the train_step of the model {model.name} assigns to {weights[id(variable)]} through "
                    "TensorFlow: each device would get weights of its own",
                    remedy="train it with self.optimizer.apply_gradients, or in a callback: on_train_batch_end",
                )
            return assign(variable, *arguments, **named)

        return method

    kinds = {type(variable._value) for variable in model.trainable_variables}
    with contextlib.ExitStack() as undo:
        for name in ("assign", "assign_add", "assign_sub"):
            for owner in {next(one for one in kind.__mro__ if name in vars(one)) for kind in kinds}:
                undo.enter_context(replaced(owner, **{name: refusing(vars(owner)[name])}))
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
    if all(grad is None for grad in grads):
        raise BadInput(
            f"the train_step of the model {model.name} gets no gradient for any weight",
            remedy="compute the loss inside the tape, and scale it there: loss = self.optimizer.scale_loss(loss)",
        )
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
    states = part.probing.states if part.probing else ()
    step, trained = f"the train_step of the model {model.name}", handles(model.trainable_variables)
    for change in part.changes:
        own = id(change.variable) in trainable
        if change.late and id(change.variable) in weights and (own or trained & sources(change.value)):
            raise BadInput(
                f"{step} changes {change.variable.path} after it applies gradients, but a split applies them when the "
                "train_step is over",
                remedy="change it in a callback: on_train_batch_end",
            )
    if not any(
        id(change.variable) in trainable and SAMPLES in sources(change.value, states) for change in part.changes
    ):
        return
    if not part.taken:
        raise BadInput(
            f"{step} changes weights without its optimizer: each device would get weights of its own",
            remedy="self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))",
        )
    part.tell(
        f"{step} changes weights before it applies gradients, as SAM does: with each device's own gradients, so the "
        "result is not exactly that of one device"
    )
