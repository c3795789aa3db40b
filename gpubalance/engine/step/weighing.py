"""Makes what Keras' losses, layers and metrics add in a part of a batch the part's share.

Every replica's loss is the mean over its own samples. When a `train_step` scales its loss, it is
multiplied once by the replica's weight in the global mean, so the replicas' gradients sum to those
of one device with the whole batch (gradients.py multiplies, ../feed.py makes the weights). A loss
that divides by something other than samples (sample weights, what a mask leaves) is first brought
to that form. What the step changes is noted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import keras
import tensorflow as tf
from keras.src.losses import loss as keras_loss

from gpubalance.engine.keras_inside import is_keras_own
from gpubalance.engine.replaced import replaced
from gpubalance.engine.step.compiled import IN_ONE_PIECE, NotCompiled
from gpubalance.engine.step.part import (
    Added,
    Change,
    MetricResult,
    Part,
    ReducedLoss,
    replaced_in_parts,
)
from gpubalance.engine.step.points import number_of_replica
from gpubalance.engine.step.state import metrics_of
from gpubalance.engine.step.vectors import weighed, wide
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
    """Makes what Keras and a model's layers add to the loss sum to one device's.

    Notes in the part what the step changes.
    """
    with ExitStack() as undo:
        enter = undo.enter_context
        enter(replaced(keras_loss, **dict.fromkeys(_SCALING, lambda value: value)))
        enter(replaced_in_parts(keras_loss, reduce_weighted_values=_reduced))
        enter(replaced_in_parts(keras_loss.Loss, __call__=_called))
        enter(replaced_in_parts(keras.Variable, assign=_assigned))
        # A layer keeps its losses until its model is called again, which another replica does
        # meanwhile: where a synchronised layer waits for all of them, each would go on with what
        # the last one has added.
        losses_by_part = replaced_in_parts(
            keras.Layer, add_loss=_kept, _get_own_losses=_own, _clear_losses=_cleared
        )
        enter(losses_by_part)
        enter(replaced_in_parts(keras.random.SeedGenerator, next=_own_seed))
        for metric in metrics_of(model):
            enter(replaced_in_parts(metric, result=partial(_result, metric)))
        for layer in model._flatten_layers():
            if getattr(layer, "activity_regularizer", None):
                enter(
                    replaced_in_parts(
                        layer, activity_regularizer=partial(_regularized, layer)
                    )
                )
            if not is_keras_own(layer):
                enter(replaced_in_parts(layer, add_loss=partial(_added, layer)))
            if isinstance(layer, keras.layers.BatchNormalization):
                enter(replaced_in_parts(layer, _moments=partial(_moments, layer)))
        yield


def _own_seed(
    part: Part, draw: Any, generator: Any, *arguments: Any, **named: Any
) -> Any:
    """The next seed of a Keras generator, made the replica's own: so noise is too."""
    seed = draw(generator, *arguments, **named)
    replica = number_of_replica() if part.probing is None else 0
    if not replica:
        return seed
    return seed + tf.constant([replica * _SEEDS_APART, 0], seed.dtype)


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
    """A loss, reduced so that times the part's weight it is the part's share of the global loss."""
    loss = reduce(values, sample_weight, mask, reduction, dtype)
    if part.replicated or reduction in ("none", None):
        return loss
    is_by_weights = reduction == "mean_with_sample_weight" and sample_weight is not None
    is_inner = len(part.calling) > 1
    # The part's fraction of the divisor, if that is not the number of samples
    own = None
    if reduction == "sum":
        # Of an inner one the calling loss decides what becomes of it: a mean, or it is refused.
        own = None if is_inner else 1.0
    elif mask is not None or is_by_weights:
        weights = sample_weight if is_by_weights else None
        own = _fraction_of_divisor(part, weights, mask, wide(loss.dtype))
    if own is not None:
        loss *= tf.cast(own / tf.cast(part.weight, wide(loss.dtype)), loss.dtype)
    if part.probing is not None and len(part.calling) == 1:
        part.probing.losses.append(ReducedLoss(part.calling[0], values, loss))
    return loss


def _fraction_of_divisor(part: Part, sample_weight: Any, mask: Any, dtype: Any) -> Any:
    """The part's fraction of a loss's divisor: samples that a mask leaves, or sample weights."""
    if part.micro:
        raise BadInput(
            "the model's loss divides by weights or a mask, which micro-batches do not have "
            "of the whole batch",
            remedy="Split(...) without micro_batches=, or a plan without: gpubalance balance "
            "--accumulate off",
        )
    if part.compiled:
        raise NotCompiled(
            "the model's loss divides by weights or a mask of the whole batch, which the devices "
            f"sum amid their steps: {IN_ONE_PIECE}"
        )
    if mask is not None:
        sample_weight = keras_loss.apply_mask(sample_weight, mask, dtype.name, "sum")
    own = tf.reduce_sum(tf.cast(sample_weight, dtype))
    if part.probing is None:
        context = tf.distribute.get_replica_context()
        everyones = context.all_reduce(tf.distribute.ReduceOp.SUM, own)
    else:
        of_whole = tf.cast(part.probing.divisors[len(part.probing.own_divisors)], dtype)
        part.probing.own_divisors.append(tf.cast(own, tf.float32))
        everyones = tf.where(of_whole > 0, of_whole, own)
    return tf.stop_gradient(tf.math.divide_no_nan(own, everyones))


def _kept(part: Part, _: Any, layer: Any, losses: Any) -> None:
    """A layer's `add_loss`, which keeps losses in the part."""
    part.added_by_layer.setdefault(id(layer), []).extend(keras.tree.flatten(losses))


def _own(part: Part, _: Any, layer: Any) -> list[Any]:
    """A layer's `_get_own_losses`, those of the part."""
    return part.added_by_layer.get(id(layer), [])


def _cleared(part: Part, clear: Any, layer: Any) -> None:
    """A layer's `_clear_losses`."""
    part.added_by_layer.pop(id(layer), None)
    clear(layer)  # calls this for the layers inside it


def _added(layer: Any, part: Part, add_loss: Any, losses: Any) -> None:
    """The `add_loss` of a user's layer. Keras takes the sum of a value for each sample."""

    def share(loss: Any) -> Any:
        return _share(
            part, Added(layer.name, loss, is_divided=False, is_regularizer=False)
        )

    add_loss(keras.tree.map_structure(share, losses))


def _regularized(layer: Any, part: Part, regularizer: Any, output: Any) -> Any:
    """A regularizer of a layer's activities."""
    loss = regularizer(output)
    return _share(
        part, Added(layer.name, loss, is_divided=_DIVIDES, is_regularizer=True)
    )


def _share(part: Part, added: Added) -> Any:
    """What is added, so that times the part's weight it is the part's share."""
    if part.replicated:
        return added.tensor
    place = part.added_count
    part.added_count += 1
    exponent = part.decomposition.exponent(place)
    if part.probing is not None:
        part.probing.added.append(added)
        exponent = part.probing.exponents[place]
    return weighed(added.tensor, part.weight, exponent)


def _moments(layer: Any, part: Part, compute: Any, inputs: Any, mask: Any) -> Any:
    """A layer's moments for batch normalisation; notes a masked call.

    It raises nothing, as Keras would wrap the error in its own words.
    """
    if mask is not None and layer.synchronized:
        part.masked_batch_norms.append(layer.name)
    if part.probing is None:
        return compute(inputs, mask)
    channels = (inputs.shape[layer.axis],)  # fixed ones, as those of parts would differ
    return tf.zeros(channels, inputs.dtype), tf.ones(channels, inputs.dtype)


def _assigned(part: Part, assign: Any, variable: Any, value: Any) -> Any:
    """A variable's `assign`, noting the change."""
    part.changes.append(Change(variable, value, late=bool(part.applied)))
    with replaced(part, assigns=True):
        return assign(variable, value)


def _result(metric: Any, part: Part, compute: Any) -> Any:
    """A metric's result, whose tensors the part knows again.

    In the logs those over all parts take their place.
    """
    result = compute()
    tensors = []
    for place, number in enumerate(keras.tree.flatten(result)):
        tensor = tf.identity(tf.convert_to_tensor(number))
        tensors.append(tensor)
        part.results[id(tensor)] = MetricResult(tensor, metric, place)
    return keras.tree.pack_sequence_as(result, tensors)
