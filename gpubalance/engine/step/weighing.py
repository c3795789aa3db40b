"""Keras' losses, layers and metrics over parts of a batch: what each adds is made the part's share,
or noted.

Every replica's loss is the mean over its own samples. When a `train_step` scales its loss, it is
multiplied once by the replica's weight in the global mean, so the replicas' gradients sum to those
of one device with the whole batch. A loss that divides by something other than samples (sample
weights, what a mask leaves) is first brought to that form.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import tensorflow as tf
from keras.src.losses import loss as keras_loss

from gpubalance.engine.keras_inside import is_keras_own
from gpubalance.engine.step.part import Added, Change, Part, ReducedLoss, in_parts, replaced
from gpubalance.engine.step.points import number_of_replica
from gpubalance.engine.step.state import metrics_of
from gpubalance.engine.step.sums import weighed, wide
from gpubalance.errors import BadInput
from gpubalance.system.versions import numbers

# Keras divides a replica's loss by the number of replicas, and undoes that for the log: here it
# does neither.
_SCALING = ("scale_loss_for_distribution", "unscale_loss_for_distribution")
# Between the seeds of two replicas: far from the small numbers that users give to layers.
_SEEDS_APART = 0x9E3779B9
# Keras divides what a regularizer of activities returns by the layer's samples since this version.
_DIVIDES = numbers(keras.__version__) >= (3, 14)


@contextmanager
def weighing(model: Any) -> Iterator[None]:
    """Makes what Keras and a model's layers add to the loss sum to one device's, and notes what the
    step changes.
    """
    with ExitStack() as undo:
        undo.enter_context(replaced(keras_loss, **{name: lambda value: value for name in _SCALING}))
        undo.enter_context(in_parts(keras_loss, reduce_weighted_values=_reduced))
        undo.enter_context(in_parts(keras_loss.Loss, __call__=_called))
        undo.enter_context(in_parts(keras.Variable, assign=_assigned))
        undo.enter_context(_own_losses())
        undo.enter_context(in_parts(keras.random.SeedGenerator, next=_own_seed))
        for metric in metrics_of(model):
            undo.enter_context(in_parts(metric, result=_result_of(metric)))
        for layer in model._flatten_layers():
            if getattr(layer, "activity_regularizer", None):
                undo.enter_context(in_parts(layer, activity_regularizer=_regularized(layer)))
            if not is_keras_own(layer):
                undo.enter_context(in_parts(layer, add_loss=_adding(layer)))
            if isinstance(layer, keras.layers.BatchNormalization):
                undo.enter_context(in_parts(layer, _moments=_moments_of(layer)))
        yield


def _own_seed(part: Part, draw: Any, generator: Any, *arguments: Any, **named: Any) -> Any:
    """Keras' next seed of a generator, which is the same on all replicas, made the replica's own:
    so noise is too.
    """
    seed = draw(generator, *arguments, **named)
    replica = number_of_replica() if part.probing is None else 0
    return seed + tf.constant([replica * _SEEDS_APART, 0], seed.dtype) if replica else seed


def _called(part: Part, call: Any, loss: Any, *arguments: Any, **named: Any) -> Any:
    """A loss's `__call__`, noting in the part which loss is being computed."""
    part.calling.append(loss)
    try:
        return call(loss, *arguments, **named)
    finally:
        part.calling.pop()


def _reduced(
    part: Part,
    reduce: Any,
    values: Any,
    sample_weight: Any = None,
    mask: Any = None,
    reduction: Any = "sum_over_batch_size",
    dtype: Any = None,
) -> Any:
    """Keras' own, changed so that its result times the part's `weight` is the replica's part of the
    global loss.
    """
    loss = reduce(values, sample_weight, mask, reduction, dtype)
    if part.whole or reduction in ("none", None):
        return loss
    is_inner = len(part.calling) > 1
    by_weights = reduction == "mean_with_sample_weight" and sample_weight is not None
    own = None
    # Of an inner one the calling loss decides what becomes of it: a mean, or it is refused.
    if reduction == "sum":
        own = None if is_inner else 1.0
    elif mask is not None or by_weights:
        own = _part_of_the_sum(part, sample_weight if by_weights else None, mask, wide(loss.dtype))
    if own is not None:
        loss *= tf.cast(own / tf.cast(part.weight, wide(loss.dtype)), loss.dtype)
    if part.probing is not None and len(part.calling) == 1:
        part.probing.losses.append(ReducedLoss(part.calling[0], values, loss))
    return loss


def _part_of_the_sum(part: Part, sample_weight: Any, mask: Any, dtype: Any) -> Any:
    """This replica's fraction of the loss's divisor: of the samples that the mask leaves, or of the
    sample weights.
    """
    if part.micro:
        raise BadInput(
            "the model's loss divides by weights or a mask, which micro-batches do not have "
            "of the whole batch",
            remedy=(
                "Split(...) without micro_batches=, or a plan without: gpubalance balance "
                "--accumulate off"
            ),
        )
    merged = (
        sample_weight
        if mask is None
        else keras_loss.apply_mask(sample_weight, mask, dtype.name, "sum")
    )
    own = tf.reduce_sum(tf.cast(merged, dtype))
    if part.probing is None:
        everyones = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, own)
    else:
        given = tf.cast(part.probing.divisors[len(part.probing.divided)], dtype)
        part.probing.divided.append(tf.cast(own, tf.float32))
        everyones = tf.where(given > 0, given, own)
    return tf.stop_gradient(tf.math.divide_no_nan(own, everyones))


@contextmanager
def _own_losses() -> Iterator[None]:
    """Makes what layers add to the loss the part's own.

    A layer keeps them until its model is called again, which another replica does meanwhile: where
    a synchronised layer waits for all of them, each would go on with what the last one has added.
    """

    def add(part: Part, _: Any, layer: Any, losses: Any) -> None:
        part.losses.setdefault(id(layer), []).extend(keras.tree.flatten(losses))

    def own(part: Part, _: Any, layer: Any) -> list[Any]:
        return part.losses.get(id(layer), [])

    def clear(part: Part, clear_all: Any, layer: Any) -> None:
        part.losses.pop(id(layer), None)
        clear_all(layer)  # calls this for the layers inside it

    with in_parts(keras.Layer, add_loss=add, _get_own_losses=own, _clear_losses=clear):
        yield


def _adding(layer: Any) -> Any:
    """A layer's `add_loss`. Keras takes the sum of a value for each sample."""

    def add(part: Part, add_loss: Any, losses: Any) -> None:
        def share(loss: Any) -> Any:
            return _share(part, Added(layer.name, loss, divided=False, is_regularizer=False))

        add_loss(keras.tree.map_structure(share, losses))

    return add


def _regularized(layer: Any) -> Any:
    """A regularizer of a layer's activities."""
    return lambda part, regularizer, output: _share(
        part, Added(layer.name, regularizer(output), _DIVIDES, is_regularizer=True)
    )


def _share(part: Part, added: Added) -> Any:
    """What is added, so that times the part's weight it is the part's share."""
    if part.whole:
        return added.loss
    place, part.added = part.added, part.added + 1
    if part.probing is not None:
        part.probing.added.append(added)
        return weighed(added.loss, part.weight, part.probing.exponents[place])
    return weighed(added.loss, part.weight, part.verdict.exponent(place))


def _moments_of(layer: Any) -> Any:
    """A `_moments` that notes a masked call. It raises nothing: Keras would wrap the error in its
    own words.
    """

    def of(part: Part, moments: Any, inputs: Any, mask: Any) -> Any:
        if mask is not None and layer.synchronized:
            part.behind_masks.append(layer.name)
        if part.probing is None:
            return moments(inputs, mask)
        channels = (inputs.shape[layer.axis],)  # fixed ones, as those of parts would differ
        return tf.zeros(channels, inputs.dtype), tf.ones(channels, inputs.dtype)

    return of


def _assigned(part: Part, assign: Any, variable: Any, value: Any) -> Any:
    part.changes.append(Change(variable, value, late=bool(part.taken)))
    with replaced(part, assigns=True):
        return assign(variable, value)


def _result_of(metric: Any) -> Any:
    """A metric's `result`, whose tensors the part knows again: in the logs those over all parts
    take their place.
    """

    def of(part: Part, result: Any) -> Any:
        found = result()
        tensors = [tf.identity(tf.convert_to_tensor(one)) for one in keras.tree.flatten(found)]
        part.results |= {id(tensor): (tensor, metric, at) for at, tensor in enumerate(tensors)}
        return keras.tree.pack_sequence_as(found, tensors)

    return of
