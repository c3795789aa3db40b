"""The one place that leans on Keras' insides, checked when it is used.

A Keras optimizer clips gradients, and looks for infinities in them, before it sums them over the replicas: each
replica would clip its own part. Here the sum comes first, so the optimizer must not sum again.

A Keras loss divides by its replica's own samples and by the number of replicas, which is right for equal batches only.
While a replica's step is traced inside `part_of`, it divides by all replicas' samples instead: the replicas' losses,
and with them their gradients, then sum to those of one device with the whole batch.
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

from gpubalance.errors import BadInput, EnvironmentFault

_SUM = "_all_reduce_sum_gradients"
_KNOWN = "3.12 to 3.15"
_OF_LOSSES = (
    "apply_mask",
    "reduce_weighted_values",
    "scale_loss_for_distribution",
    "unscale_loss_for_distribution",
)
_OF_MODELS = ("_aggregate_additional_loss", "_distribute_strategy", "_loss_tracker", "_symbolic_build")
_originals: dict[str, Any] = {name: getattr(keras_loss, name, None) for name in _OF_LOSSES}
_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


@dataclass
class _Part:
    """What the replica that this thread traces has of the global batch.

    `weight` is the part of the loss that is its own, `scale` that of the loss which is reduced now; `samples` is its
    batch. Of a batch that all replicas have `whole`, one counts in the metrics, and `counts` tells which.
    """

    weight: Any
    scale: Any
    samples: Any
    whole: bool
    counts: bool


class _Current(threading.local):
    part: _Part | None = None
    taken: list[tuple[list[Any], list[Any]]] | None = None


_current = _Current()


def applies_summed_gradients(optimizer: Any) -> Any:
    """The optimizer, changed so that `apply` takes gradients that are summed over the replicas already.

    Raises EnvironmentFault for a Keras that sums somewhere else, BadInput for an optimizer that accumulates gradients
    over steps, which Keras can't do under a strategy.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if not callable(getattr(inner, _SUM, None)):
        raise _moved(f"sums gradients in another place, {type(inner).__name__}.{_SUM},")
    if getattr(inner, "gradient_accumulation_steps", None):
        raise BadInput(
            "the model's optimizer has gradient_accumulation_steps, which Keras can't do over several devices",
            remedy="leave it out; a plan's micro-batches do the same within a step",
        )
    setattr(inner, _SUM, list)
    return optimizer


def _moved(what: str) -> EnvironmentFault:
    return EnvironmentFault(
        f"Keras {keras.__version__} {what} that gpubalance does not know", remedy=f"use Keras {_KNOWN}"
    )


def check(model: Any) -> None:
    """Raises EnvironmentFault for a Keras whose insides are not what this file knows."""
    missing = [f"losses.{name}" for name, found in _originals.items() if not callable(found)]
    missing += [f"Model.{name}" for name in _OF_MODELS if not hasattr(model, name)]
    if missing:
        raise _moved(f"lacks {', '.join(missing)}, or has it in a place")
    keras_loss.reduce_weighted_values = _reduce_weighted_values
    keras_loss.scale_loss_for_distribution = _scale
    keras_loss.unscale_loss_for_distribution = _unscale


def made_under(model: Any, strategy: Any) -> None:
    """Raises BadInput for a model that was built or compiled elsewhere: its variables are on one device."""
    optimizer = getattr(model, "optimizer", None)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    for what, found in (("built", model), ("compiled", inner)):
        own = getattr(found, "_distribute_strategy" if what == "built" else "_distribution_strategy", strategy)
        if found is not None and own is not strategy:
            raise BadInput(
                f"the model {model.name} was {what} outside split.scope(): its variables are on one device",
                remedy="with split.scope(): build it, load it and compile it",
            )


def compiled(model: Any) -> list[Any]:
    """What is another object when the model is compiled anew."""
    return [getattr(model, name, None) for name in ("optimizer", "_compile_loss", "_compile_metrics")]


@contextlib.contextmanager
def part_of(weight: Any, samples: Any, *, whole: bool = False, counts: bool = True) -> Iterator[None]:
    """While this thread traces a replica's step: its losses are its `weight`, of 1, of the global batch's."""
    _current.part = _Part(weight, weight, samples, whole, counts)
    try:
        yield
    finally:
        _current.part = None


def _scale(value: Any) -> Any:
    part = _current.part
    return (
        _originals["scale_loss_for_distribution"](value) if part is None else value * tf.cast(part.scale, value.dtype)
    )


def _unscale(value: Any) -> Any:
    """The mean over the replica's samples, whose mean over all replicas' samples is the global loss."""
    part = _current.part
    if part is None:
        return _originals["unscale_loss_for_distribution"](value)
    return tf.math.divide_no_nan(value, tf.cast(part.weight, value.dtype))


def _reduce_weighted_values(
    values: Any,
    sample_weight: Any = None,
    mask: Any = None,
    reduction: Any = "sum_over_batch_size",
    dtype: Any = None,
) -> Any:
    part, original = _current.part, _originals["reduce_weighted_values"]
    if part is None:
        return original(values, sample_weight, mask, reduction, dtype)
    part.scale = part.weight
    by_weights = reduction == "mean_with_sample_weight" and sample_weight is not None
    if not part.whole and reduction in _MEANS and (mask is not None or by_weights):
        part.scale = _part_of_the_sum(sample_weight if by_weights else None, mask)
    try:
        loss = original(values, sample_weight, mask, reduction, dtype)
    finally:
        part.scale = part.weight
    if reduction in _MEANS and len(values.shape) == 0:
        return _scale(loss)  # a function of the user's that takes the mean itself
    return loss * tf.cast(part.weight, loss.dtype) if part.whole and reduction == "sum" else loss


def _part_of_the_sum(sample_weight: Any, mask: Any) -> Any:
    """What this replica has of the divisor: of all samples that a mask leaves, or of all their weights."""
    merged = sample_weight if mask is None else _originals["apply_mask"](sample_weight, mask, "float32", "sum")
    own = tf.reduce_sum(tf.cast(merged, tf.float32))
    everyones = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, own)
    return tf.stop_gradient(tf.math.divide_no_nan(own, everyones))


def divides_by_more_than_samples(model: Any) -> bool:
    """Whether a loss needs something of all replicas' samples, which micro-batches do not have at one time."""
    losses = tf.nest.flatten(getattr(model, "loss", None))
    weighted = any(getattr(loss, "reduction", "") == "mean_with_sample_weight" for loss in losses)
    return weighted or any(getattr(layer, "supports_masking", False) and _masks(layer) for layer in _layers(model))


def _masks(layer: Any) -> bool:
    return isinstance(layer, keras.layers.Masking) or bool(getattr(layer, "mask_zero", False))


def _layers(model: Any) -> Sequence[Any]:
    return list(model._flatten_layers())


@contextlib.contextmanager
def taking_gradients(model: Any) -> Iterator[None]:
    """`model.train_step` hands its gradients to `gradients_of` instead of applying them; they are summed first."""
    optimizer = model.optimizer
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    apply = optimizer.apply

    def take(grads: Any, trainable_variables: Any = None) -> Any:
        if _current.taken is None:
            return apply(grads, trainable_variables)
        _current.taken.append((list(grads), list(trainable_variables or model.trainable_variables)))
        return None

    applies_summed_gradients(optimizer)
    optimizer.apply = take
    try:
        yield
    finally:
        del optimizer.apply
        delattr(inner, _SUM)


@contextlib.contextmanager
def counting_once(model: Any) -> Iterator[None]:
    """The metrics of a model that is built count each sample once, and weigh all of them alike."""
    counted = [(tracker, _by_samples(tracker.update_state)) for tracker in _loss_trackers(model)]
    counted += [(metric, _once(metric.update_state)) for metric in _whole_metrics(model)]
    for metric, update in counted:
        metric.update_state = update
    try:
        yield
    finally:
        for metric, _ in counted:
            del metric.update_state


def _loss_trackers(model: Any) -> list[Any]:
    """Of each output's own loss."""
    return list(model._compile_loss.metrics) if model._compile_loss is not None else []


def _whole_metrics(model: Any) -> list[Any]:
    return [metric for metric in (model._loss_tracker, model._compile_metrics) if metric is not None]


def _by_samples(update: Callable[..., Any]) -> Callable[..., Any]:
    """Weighs by the samples: Keras does where it knows their number when it traces, and else not at all."""

    def update_state(value: Any, sample_weight: Any = None) -> Any:
        part = _current.part
        if part is None:
            return update(value, sample_weight=sample_weight)
        return update(value, sample_weight=part.samples) if part.counts else None

    return update_state


def _once(update: Callable[..., Any]) -> Callable[..., Any]:
    def update_state(*arguments: Any, **named: Any) -> Any:
        part = _current.part
        return None if part is not None and not part.counts else update(*arguments, **named)

    return update_state


def gradients_of(model: Any, data: Any) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """The gradients of `model.train_step`, the user's own where there is one, their variables, and its logs."""
    _current.taken = []
    try:
        logs = model.train_step(data)
        taken = _current.taken
    finally:
        _current.taken = None
    if len(taken) != 1:
        raise BadInput(f"the model's train_step applies gradients {len(taken)} times, not once")
    return *taken[0], logs


@contextlib.contextmanager
def on_one_device(model: Any, functions: dict[str, Any]) -> Iterator[None]:
    """Keras' `fit`, `evaluate` and `predict` deal with whole batches, as on one device, and call these functions."""
    strategy = model._distribute_strategy
    before = {name: getattr(model, name) for name in functions}
    model._distribute_strategy = None
    for name, function in functions.items():
        setattr(model, name, function)
    try:
        yield
    finally:
        model._distribute_strategy = strategy
        for name, function in before.items():
            setattr(model, name, function)


def build(model: Any, strategy: Any, data: Any) -> None:
    """Makes all variables of the model, its metrics and its optimizer, for batches like this one."""
    with strategy.scope():
        model._symbolic_build(data_batch=data)
