"""A step's gradients: taken when they would be applied, summed over micro-batches, and by rows.

A part's loss counts by the part's share of the *global* batch. So the gradients of all replicas'
micro-batches sum exactly to that of the whole batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

import keras
import tensorflow as tf

from gpubalance.engine import keras_patches
from gpubalance.engine.feed import PartWeights
from gpubalance.engine.keras_patches import check_optimizer
from gpubalance.engine.replacing import Method, acting
from gpubalance.engine.sources import has_fixed_rows
from gpubalance.engine.step.fused_updates import fused_updates
from gpubalance.engine.step.part import Part, PartReplacements
from gpubalance.engine.step.problems import changed_by_samples, refuse_problems
from gpubalance.engine.step.sums import batch_of
from gpubalance.errors import BadInput

# TensorFlow's functions that divide by the number of replicas, and what to do instead.
_DIVIDING = {
    keras_patches.AVERAGE_LOSS: "take the mean over samples: ops.mean(loss)",
    keras_patches.SCALE_REGULARIZATION: "add the losses as they are",
}


class RowForm(NamedTuple):
    """The rows' indices and the shape of an IndexedSlices of which only the values are summed.

    `summable` takes the row form off the gradient, `by_rows` puts it back on the sum.
    """

    indices: Any
    dense_shape: Any


class PartResult(NamedTuple):
    """What a replica's part of a batch gives, traced: a micro-batch, or the batch in one piece."""

    packed_numbers: Any  # a vector, which is summed too: see `_PartNumbers` in step.py
    grads: list[Any]  # each is dense, IndexedSlices or None, in the form of `summable`
    row_forms: list[RowForm | None]  # one for each gradient
    variables: list[Any]  # whose gradients these are; empty if the step applies none


def gradients_of(model: Any, part: Part) -> tuple[list[Any], list[Any]]:
    """The gradients that the part's `train_step` has applied, and their variables.

    The gradients of all parts sum to the whole batch's. Raises BadInput for what a split can't
    train.
    """
    refuse_problems(model, part)
    if changed_by_samples(part, model.trainable_variables):
        part.warn(
            f"the train_step of the model {model.name} changes weights before it "
            "applies gradients, as SAM does. Each device uses its own gradients for "
            "that, so the result is not exactly that of one device"
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
    """Makes `model.train_step` hand its gradients to `gradients_of` instead of applying them.

    Raises BadInput for an optimizer with an option that Keras does not support under a strategy.
    """
    optimizer = model.optimizer
    check_optimizer(optimizer)
    refuse = partial(_refuse_another, model)
    replacements = inlining_tf_functions(model)
    replacements |= _refusing_direct_assignments(model) | _noting_tapes(model)
    for division, instead in _DIVIDING.items():
        replacements[division] = partial(
            _refuse_division, model, division.name, instead
        )
    # Replaced in the classes: that refuses all other optimizers, also one inside another.
    replacements[keras_patches.OPTIMIZER_APPLY] = refuse
    replacements[keras_patches.LOSS_SCALE_APPLY] = refuse
    replacements[Method.of(optimizer, "apply")] = partial(_take, model)
    replacements[Method.of(optimizer, "scale_loss")] = _scale_loss
    return replacements


def optimizer_applies_without_summing() -> contextlib.AbstractContextManager[None]:
    """Makes optimizers apply gradients as they are: these are sums over the replicas already.

    An optimizer whose update TensorFlow has as one kernel uses that kernel.
    """
    return acting({keras_patches.OPTIMIZER_SUM: _unchanged, **fused_updates()})


def _unchanged(_: Any, __: Any, gradients_and_variables: Any) -> Any:
    """In place of an optimizer's sum over the replicas."""
    return list(gradients_and_variables)


def _take(
    model: Any,
    part: Part,
    _: Any,
    __: Any,
    grads: Any,
    trainable_variables: Any = None,
) -> None:
    """In place of the optimizer's `apply`: keeps the gradients in the part."""
    graph = tf.compat.v1.get_default_graph()
    # A branch or a loop has a graph of its own.
    part.applied_inside = part.applied_inside or part.graph is not graph
    part.operations_before = len(graph.get_operations())
    variables = trainable_variables or model.trainable_variables
    part.applied.append((list(grads), list(variables)))


def _refuse_another(
    model: Any, _: Part, __: Any, other: Any, *arguments: Any, **named: Any
) -> NoReturn:
    """In place of the `apply` of other optimizers."""
    del arguments, named
    raise BadInput(
        f"the train_step of the model {model.name} applies gradients with {other.name}, which is "
        "not the optimizer that the model was compiled with",
        remedy="train a model with several optimizers, such as a GAN, on one device",
    )


def _scale_loss(part: Part, scale_loss: Any, optimizer: Any, loss: Any) -> Any:
    """In place of an optimizer's `scale_loss`: weighs the loss first."""
    part.is_scaled = True
    # Of a loss with a value for each sample the gradient of the sum is taken: it needs no weight.
    if not part.replicated and not loss.shape.rank:
        loss = loss * tf.cast(part.weight, loss.dtype)
    # The parity check leaves the loss scale out: its gradients must not overflow.
    return scale_loss(optimizer, loss) if part.probing is None else loss


def _noting_tapes(model: Any) -> PartReplacements:
    """Makes gradient tapes note their targets in the parity check, and watch changed weights.

    There a weight that the step changes, as SAM does, has a tensor as its value. A tape watches
    variables by itself, but not such a tensor.
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
        """In place of the tape's own `gradient`, which is `take`."""
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
        f"the model {model.name} calls tf.nn.{name}, which divides by the number of "
        "devices: with a split that would divide twice",
        remedy=instead,
    )


def inlining_tf_functions(model: Any) -> PartReplacements:
    """Makes methods of a user's model that are a `tf.function` part of the step's own graph.

    In a graph of its own, such a method would keep the gradients that it applies to itself.
    """
    replacements: PartReplacements = {}
    for owner in type(model).__mro__:
        for name in list(vars(owner)):
            may_be_of_step = name in ("train_step", "test_step") or not hasattr(
                keras.Model, name
            )
            function = Method(owner, name).original()
            if may_be_of_step and isinstance(
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
    """The Python function of a `tf.function`, with the same control flow on tensors."""
    if getattr(function, "_autograph", True):
        # Fails without the source code. Then a `tf.function` leaves the function as it is too.
        with contextlib.suppress(Exception):
            return tf.autograph.to_graph(function.python_function)
    return function.python_function


def _refusing_direct_assignments(model: Any) -> PartReplacements:
    """Refuses a step's assignments to a weight that bypass Keras.

    By these each device would get weights of its own.
    """
    weights = {
        id(variable._value): variable.path for variable in model.trainable_variables
    }

    def change(
        part: Part, assign: Any, variable: Any, *arguments: Any, **named: Any
    ) -> Any:
        """In place of TensorFlow's own assignment, which is `assign`."""
        if not part.assigns and id(variable) in weights:
            raise BadInput(
                f"the train_step of the model {model.name} assigns to "
                f"{weights[id(variable)]} directly through TensorFlow, so the "
                "devices' weights would drift apart",
                remedy="change it through self.optimizer.apply_gradients, or in a "
                "callback: on_train_batch_end",
            )
        return assign(variable, *arguments, **named)

    replacements: PartReplacements = {}
    for variable in model.trainable_variables:
        for assignment in keras_patches.assignments(variable):
            replacements[assignment] = change
    return replacements


def over_micro_batches(
    run_part: Callable[[Any, Any], PartResult],
    data: Any,
    weights: PartWeights,
    micro_batch: Any,
) -> PartResult:
    """The sums of the numbers and gradients of `data`, `micro_batch` samples in memory at a time.

    `micro_batch` is an int32 scalar; if it does not divide the batch, the first micro-batch is the
    smaller one. `run_part` takes a micro-batch and its weight. Gradients keep their form: None,
    dense or IndexedSlices. Row forms and variables are equal in all micro-batches.
    """
    batch = batch_of(data)
    count = -(-batch // micro_batch)
    first_size = batch - (count - 1) * micro_batch

    def run(index: Any, weight: Any) -> PartResult:
        end = first_size + index * micro_batch
        begin = tf.maximum(0, end - micro_batch)
        return run_part(
            tf.nest.map_structure(lambda values: values[begin:end], data), weight
        )

    def add(index: Any, numbers: Any, sums: Any) -> tuple[Any, Any, Any]:
        # In a loop's body or a branch TensorFlow forgets the device, so a function called there
        # would take another replica's weights.
        with tf.device(first.packed_numbers.device):
            own = run(index, weights.other_micro_batch)
            pairs = zip(sums, own.grads, strict=True)
            sums = tuple(_plus(summed, grad, index) for summed, grad in pairs)
            return index + 1, numbers + own.packed_numbers, sums

    # The first micro-batch is outside the loop, so that a single one needs no second set of
    # gradients in memory.
    first = run(tf.constant(0), weights.first_micro_batch)
    initial_sums = tuple(_initial_sum(grad, count) for grad in first.grads)
    before_last = tf.while_loop(
        lambda index, *_: index < count - 1,
        add,
        (tf.constant(1), first.packed_numbers, initial_sums),
        parallel_iterations=1,
    )
    # A loop gives all its sums at its end. So the last micro-batch is outside too: its gradients go
    # to the other replicas as they come.
    _, numbers, sums = tf.cond(
        count > 1, lambda: add(*before_last), lambda: before_last
    )
    grads = []
    for summed, grad in zip(sums, first.grads, strict=True):
        grads.append(_finished_sum(summed, grad))
    return first._replace(packed_numbers=numbers, grads=grads)


def _initial_sum(grad: Any, count: Any) -> tuple[Any, ...]:
    """The initial sum: the gradient itself, or arrays with room for `count` gradients' rows."""
    if grad is None:
        return ()
    if not isinstance(grad, tf.IndexedSlices):
        return (grad,)
    # Rows are not summed: Keras' Adam squares a row's gradients before it adds them, so it must get
    # each one.
    return _array_of(grad.values, count), _array_of(grad.indices, count)


def _array_of(first: Any, count: Any) -> Any:
    array = tf.TensorArray(
        first.dtype, count, element_shape=first.shape, infer_shape=False
    )
    return array.write(0, first)


def _plus(summed: tuple[Any, ...], grad: Any, index: Any) -> tuple[Any, ...]:
    """The sum after adding the gradient of micro-batch `index`."""
    if grad is None:
        return ()
    if not isinstance(grad, tf.IndexedSlices):
        return (summed[0] + grad,)
    values, indices = summed
    return values.write(index, grad.values), indices.write(index, grad.indices)


def _finished_sum(summed: tuple[Any, ...], grad: Any) -> Any:
    """The finished sum in the form of `grad`."""
    if grad is None:
        return None
    if not isinstance(grad, tf.IndexedSlices):
        return summed[0]
    values, indices = summed
    return tf.IndexedSlices(values.concat(), indices.concat(), grad.dense_shape)


def refuse_what_cannot_accumulate(model: Any) -> None:
    """Raises BadInput for synchronised batch normalisation.

    Replicas with different numbers of micro-batches can't meet in it.
    """
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized:
            raise BadInput(
                f"the model's layer {layer.name} synchronises batch normalisation, "
                "which does not work with micro-batches",
                remedy="leave out --micro-batches (in a script micro_batches=), or "
                "set synchronized=False",
            )


def summable(grads: Sequence[Any]) -> tuple[list[Any], list[RowForm | None]]:
    """A part's gradients in a form that adds up with that of other parts, and their row forms.

    1. An embedding of positions gives IndexedSlices with the same rows in every part. Only their
       values stay, which add up one by one; the row form keeps the rows' indices. One device, too,
       gets a row of each position, the sum over all samples.
    2. An embedding of words gives a row for each occurrence of a word. They stay IndexedSlices,
       whose rows are appended: optimizers square and clip each row that they get.
    3. Dense gradients and None stay as they are.
    """
    changed = []
    forms: list[RowForm | None] = []
    for grad in grads:
        form = None
        if has_fixed_rows(grad):
            form = RowForm(grad.indices, grad.dense_shape)
            grad = grad.values
        changed.append(grad)
        forms.append(form)
    return changed, forms


def by_rows(sums: Sequence[Any], forms: Sequence[RowForm | None]) -> list[Any]:
    """The sums over all parts, as IndexedSlices again where the parts' gradients were."""
    grads = []
    for total, form in zip(sums, forms, strict=True):
        if form is not None:
            total = tf.IndexedSlices(total, form.indices, form.dense_shape)
        grads.append(total)
    return grads
