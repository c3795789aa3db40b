"""What only training leans on of Keras' insides, checked when it is used; see engine/keras_inside.py too.

Every replica's loss is the mean over its own samples. Where a `train_step` scales its loss, that is multiplied once by
the replica's weight in the global mean: so the replicas' gradients sum to those of one device with the whole batch. A
loss that divides by something other than samples (sample weights, what a mask leaves) is first brought to that form.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from keras.src.losses import loss as keras_loss

from gpubalance.engine.keras_inside import KNOWN, SUM, summing
from gpubalance.errors import BadInput, EnvironmentFault
from gpubalance.system.versions import numbers

_OF_LOSSES = (
    "apply_mask",
    "reduce_weighted_values",
    "scale_loss_for_distribution",
    "unscale_loss_for_distribution",
)
_OF_MODELS = ("_compile_loss", "_compile_metrics", "_distribute_strategy", "_flatten_layers", "_symbolic_build")
_SUMS_ACTIVITIES = numbers(keras.__version__) < (3, 14)
_originals: dict[str, Any] = {name: getattr(keras_loss, name, None) for name in _OF_LOSSES}


@dataclass
class _Part:
    """The part of the global batch that is of the replica which this thread traces.

    `weight` is its fraction of the samples. A batch that all replicas have `whole` counts in one's metrics only.
    `micro`: it is a micro-batch. `is_scaled`: the loss has been multiplied by the weight.
    """

    weight: Any
    whole: bool
    counts: bool
    micro: bool
    is_scaled: bool = False


class _Current(threading.local):
    part: _Part | None = None
    taken: list[tuple[list[Any], list[Any]]] | None = None


_current = _Current()


def take_over_losses(model: Any) -> None:
    """Keras' losses go by each replica's part from now on, wherever `part_of` says what that is.

    Raises EnvironmentFault for a Keras whose insides are not what this file knows.
    """
    missing = [f"losses.{name}" for name, found in _originals.items() if not callable(found)]
    missing += [f"Model.{name}" for name in _OF_MODELS if not hasattr(model, name)]
    if missing:
        raise EnvironmentFault(
            f"Keras {keras.__version__} has no {', '.join(missing)} where gpubalance knows it",
            remedy=f"use Keras {KNOWN}",
        )
    keras_loss.reduce_weighted_values = _reduce_weighted_values
    # Keras divides a replica's loss by the number of replicas, and multiplies where it logs it: here neither is done.
    for name in ("scale_loss_for_distribution", "unscale_loss_for_distribution"):
        setattr(keras_loss, name, _unchanged_inside(_originals[name]))


def _unchanged_inside(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: original(value) if _current.part is None else value


def made_under(model: Any, strategy: Any) -> None:
    """Raises BadInput for a model that was built or compiled elsewhere: its variables are on one device."""
    elsewhere = [
        layer.name
        for layer in model._flatten_layers(include_self=False)
        for variable in layer._trainable_variables + layer._non_trainable_variables
        if not strategy.extended.variable_created_in_scope(variable.value)
    ]
    if model._distribute_strategy is not strategy:
        what = f"the model {model.name} was built"
    elif elsewhere:
        what = f"the layer {elsewhere[0]} of the model {model.name} was built"
    elif _strategy_of(getattr(model, "optimizer", None), strategy) is not strategy:
        what = f"the optimizer of the model {model.name} was made, or the model compiled,"
    else:
        return
    raise BadInput(
        f"{what} outside this split's scope(): its variables are elsewhere",
        remedy="with split.scope(): build it, load it and compile it",
    )


def _strategy_of(optimizer: Any, default: Any) -> Any:
    return getattr(getattr(optimizer, "inner_optimizer", optimizer), "_distribution_strategy", default)


def compiled(model: Any) -> list[Any]:
    """The objects that compiling the model again replaces."""
    return [getattr(model, name, None) for name in ("optimizer", "_compile_loss", "_compile_metrics", "run_eagerly")]


def build(model: Any, strategy: Any, data: Any) -> None:
    """Makes all variables of the model, its metrics and its optimizer, for batches like this one."""
    with strategy.scope():
        model._symbolic_build(data_batch=data)


@contextlib.contextmanager
def _replaced(owner: Any, **values: Any) -> Iterator[None]:
    """Gives an object other attributes or methods for a while."""
    before = {name: vars(owner)[name] for name in values if name in vars(owner)}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name in values:
            if name in before:
                setattr(owner, name, before[name])
            else:
                delattr(owner, name)


def on_one_device(model: Any, **functions: Any) -> contextlib.AbstractContextManager[None]:
    """Keras' `fit`, `evaluate` and `predict` deal with whole batches, as on one device, and call these functions."""
    return _replaced(model, _distribute_strategy=None, **functions)


@contextlib.contextmanager
def part_of(weight: Any, *, whole: bool = False, counts: bool = True, micro: bool = False) -> Iterator[None]:
    """While this thread traces a replica's step: `weight` is what its mean loss counts for in the global one."""
    _current.part = _Part(weight, whole, counts, micro)
    try:
        yield
    finally:
        _current.part = None


def _reduce_weighted_values(
    values: Any,
    sample_weight: Any = None,
    mask: Any = None,
    reduction: Any = "sum_over_batch_size",
    dtype: Any = None,
) -> Any:
    """Keras' own, changed so that times the part's `weight` it is the replica's part of the global loss."""
    part = _current.part
    loss = _originals["reduce_weighted_values"](values, sample_weight, mask, reduction, dtype)
    if part is None or part.whole:
        return loss
    by_weights = reduction == "mean_with_sample_weight" and sample_weight is not None
    if reduction in ("sum", "none", None):
        own = 1.0
    elif mask is not None or by_weights:
        own = _part_of_the_sum(sample_weight if by_weights else None, mask)
    else:
        return loss
    return loss * tf.cast(own / part.weight, loss.dtype)


def _part_of_the_sum(sample_weight: Any, mask: Any) -> Any:
    """This replica's fraction of what the loss is divided by: samples that the mask leaves, or sample weights."""
    if _current.part is not None and _current.part.micro:
        raise BadInput(
            "the model's loss divides by weights or a mask, which micro-batches do not have of the whole batch",
            remedy="use a plan without micro-batches: gpubalance balance --accumulate off",
        )
    merged = sample_weight if mask is None else _originals["apply_mask"](sample_weight, mask, "float32", "sum")
    own = tf.reduce_sum(tf.cast(merged, tf.float32))
    everyones = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, own)
    return tf.stop_gradient(tf.math.divide_no_nan(own, everyones))


@contextlib.contextmanager
def taking_gradients(model: Any) -> Iterator[None]:
    """`model.train_step` hands its gradients to `gradients_of` instead of applying them; they are summed first."""
    optimizer = model.optimizer
    apply, scale_loss = optimizer.apply, optimizer.scale_loss

    def take(grads: Any, trainable_variables: Any = None) -> Any:
        if _current.taken is None:
            return apply(grads, trainable_variables)
        _current.taken.append((list(grads), list(trainable_variables or model.trainable_variables)))
        return None

    def weigh(loss: Any) -> Any:
        part = _current.part
        if part is None:
            return scale_loss(loss)
        part.is_scaled = True
        return scale_loss(loss * tf.cast(part.weight, loss.dtype))

    with _replaced(summing(optimizer), **{SUM: list}), _replaced(optimizer, apply=take, scale_loss=weigh):
        yield


def gradients_of(model: Any, data: Any) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """The gradients of `model.train_step`, the user's own where there is one, their variables, and its logs."""
    part = _current.part
    assert part is not None  # noqa: S101  (inside `part_of`)
    _current.taken = []
    try:
        logs = model.train_step(data)
        taken = _current.taken
    finally:
        _current.taken = None
    if len(taken) > 1:
        raise BadInput(
            f"the train_step of the model {model.name} applies gradients {len(taken)} times, not once",
            remedy="such a model can't be trained with a split",
        )
    if not taken:
        return [], [], logs
    grads, variables = taken[0]
    return (grads if part.is_scaled else _weighed(model, grads, part.weight)), variables, logs


def _weighed(model: Any, grads: Sequence[Any], weight: Any) -> list[Any]:
    """A `train_step` that does not call `optimizer.scale_loss` has the unweighted loss's gradients: weighs those."""
    if any(getattr(layer, "synchronized", False) for layer in model._flatten_layers()):
        raise BadInput(
            f"the train_step of the model {model.name} does not scale its loss, which synchronised layers need",
            remedy="loss = self.optimizer.scale_loss(loss), before the gradients are taken",
        )
    return [None if grad is None else tf.math.scalar_mul(tf.cast(weight, grad.dtype), grad) for grad in grads]


@contextlib.contextmanager
def by_parts(model: Any) -> Iterator[None]:
    """The metrics of a model that is built count each sample once, and weigh all of them alike.

    Before 3.14 Keras takes an activity regulariser's sum over the batch, not its mean: its weight is 1 then.
    """
    trackers = list(model._compile_loss.metrics) if model._compile_loss is not None else []
    metrics = {id(metric): metric for metric in (*model.metrics, *trackers)}
    regularised = [layer for layer in model._flatten_layers() if getattr(layer, "activity_regularizer", None)]
    with contextlib.ExitStack() as undo:
        for metric in metrics.values():
            undo.enter_context(_replaced(metric, update_state=_counted(metric, metric.update_state)))
        for layer in regularised if _SUMS_ACTIVITIES else []:
            undo.enter_context(_replaced(layer, activity_regularizer=_summed(layer.activity_regularizer)))
        yield


def _summed(regularizer: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def over_the_batch(output: Any) -> Any:
        part, loss = _current.part, regularizer(output)
        return loss if part is None or part.whole else loss / tf.cast(part.weight, loss.dtype)

    return over_the_batch


def _counted(metric: Any, update: Callable[..., Any]) -> Callable[..., Any]:
    takes_values = isinstance(metric, keras.metrics.Mean) and not isinstance(metric, keras.metrics.MeanMetricWrapper)

    def counted(*arguments: Any, **named: Any) -> Any:
        """`update_state` for this thread's part of the global batch."""
        part = _current.part
        if part is None:
            return update(*arguments, **named)
        if not part.counts:
            return None
        unweighted = len(arguments) < 2 and named.get("sample_weight") is None
        value = arguments[0] if arguments else named.get("values")
        if takes_values and unweighted and not part.whole and len(getattr(value, "shape", ())) == 0:
            # One number for a batch, as a mean loss: the replicas' numbers together count as that one would.
            named = {**named, "sample_weight": part.weight}
        return update(*arguments, **named)

    return counted


def kept_by_each(model: Any) -> list[Any]:
    """Variables that no gradient changes and that each replica keeps by itself, such as moving averages."""
    found = [variable for layer in model._flatten_layers() for variable in layer._non_trainable_variables]
    return [variable for variable in found if tf.as_dtype(variable.dtype).is_floating]
