"""Makes what losses and layers add, while a part of a batch is traced, the part's share.

Every replica's loss is the mean over its own samples. When a `train_step` scales its loss, it is
multiplied once by the replica's weight in the global mean, so the replicas' gradients sum to those
of one device with the whole batch (gradients.py multiplies, ../feed.py makes the weights). A loss
that divides by something other than samples (sample weights, what a mask leaves) is first brought
to that form. The part notes what the step changes, and the metrics' results that it reads.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine import keras_patches
from gpubalance.engine.keras_patches import is_keras_own
from gpubalance.engine.step.part import (
    Added,
    Change,
    MetricResult,
    Part,
    PartReplacements,
    ReducedLoss,
)
from gpubalance.engine.step.points import number_of_replica
from gpubalance.engine.step.problems import IN_ONE_PIECE, NotCompiled
from gpubalance.engine.step.state import metrics_of
from gpubalance.engine.step.sums import weighed, wide
from gpubalance.errors import BadInput
from gpubalance.system.versions import numbers

# The difference of two replicas' seeds, far from the small numbers that users give to layers.
_SEEDS_APART = 0x9E3779B9
# Since this version Keras divides what a regularizer of activities returns by the layer's samples.
_DIVIDES_BY_SAMPLES = numbers(keras.__version__) >= (3, 14)


def weighing(model: Any) -> PartReplacements:
    """Replaces methods so that what losses and layers add in all parts sums to one device's.

    The part notes what the step changes, and the metrics' results that it reads.
    """
    layers = model._flatten_layers()
    users_layers = {id(layer) for layer in layers if not is_keras_own(layer)}
    replacements: PartReplacements = {
        keras_patches.LOSS_REDUCTION: _reduced,
        keras_patches.LOSS_CALL: _called,
        keras_patches.VARIABLE_ASSIGN: _assigned,
        keras_patches.ADD_LOSS: partial(_add_loss, users_layers),
        keras_patches.OWN_LOSSES: _own_losses,
        keras_patches.CLEAR_LOSSES: _clear_losses,
        keras_patches.NEXT_SEED: _own_seed,
    }
    for scaling in keras_patches.SCALING_OF_LOSSES:
        replacements[scaling] = _not_scaled
    for metric in metrics_of(model):
        replacements[keras_patches.metric_result(metric)] = _result
    for layer in layers:
        if getattr(layer, "activity_regularizer", None):
            regularizer = keras_patches.activity_regularizer(layer)
            replacements[regularizer] = partial(_regularizer_of_part, layer)
        if isinstance(layer, keras.layers.BatchNormalization):
            replacements[keras_patches.moments(layer)] = _moments
    return replacements


def _not_scaled(_: Part, __: Any, value: Any) -> Any:
    """The loss as it is: Keras divides it by the number of replicas, and multiplies it for logs."""
    return value


def _own_seed(
    part: Part, draw: Any, generator: Any, *arguments: Any, **named: Any
) -> Any:
    """The next seed of a Keras generator, another one on each replica: so is the noise."""
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
    fraction = None
    if reduction == "sum":
        # The loss that called an inner one may divide its sum to a mean; else it is refused.
        fraction = None if is_inner else 1.0
    elif mask is not None or is_by_weights:
        weights = sample_weight if is_by_weights else None
        fraction = _fraction_of_divisor(part, weights, mask, wide(loss.dtype))
    if fraction is not None:
        loss *= tf.cast(fraction / tf.cast(part.weight, wide(loss.dtype)), loss.dtype)
    if part.probing is not None and len(part.calling) == 1:
        part.probing.losses.append(ReducedLoss(part.calling[0], values, loss))
    return loss


def _fraction_of_divisor(part: Part, sample_weight: Any, mask: Any, dtype: Any) -> Any:
    """The part's fraction of a loss's divisor: of the sample weights, or what a mask leaves."""
    if part.micro:
        raise BadInput(
            "the model's loss divides by weights or a mask of the whole batch, which "
            "a micro-batch does not have",
            remedy="use Split(...) without micro_batches=, or a plan without "
            "micro-batches: gpubalance balance --accumulate off",
        )
    if part.compiled:
        raise NotCompiled(
            "the model's loss divides by the sum of the whole batch's weights or mask, "
            f"which the devices exchange in the middle of a step: {IN_ONE_PIECE}"
        )
    if mask is not None:
        sample_weight = keras_patches.apply_mask(sample_weight, mask, dtype.name, "sum")
    own = tf.reduce_sum(tf.cast(sample_weight, dtype))
    if part.probing is None:
        context = tf.distribute.get_replica_context()
        whole = context.all_reduce(tf.distribute.ReduceOp.SUM, own)
    else:
        given = tf.cast(part.probing.divisors[len(part.probing.own_divisors)], dtype)
        part.probing.own_divisors.append(tf.cast(own, tf.float32))
        whole = tf.where(given > 0, given, own)
    return tf.stop_gradient(tf.math.divide_no_nan(own, whole))


def _add_loss(
    users_layers: set[int], part: Part, _: Any, layer: Any, losses: Any
) -> None:
    """A layer's `add_loss`: keeps the losses in the part, those of the user's layers as its share.

    If a loss has several values, such as one for each sample, Keras adds their sum later.
    """
    for loss in keras.tree.flatten(losses):
        own = loss
        if id(layer) in users_layers:
            added = Added(layer.name, loss, is_divided=False, is_regularizer=False)
            own = _share(part, added)
        part.added_by_layer.setdefault(id(layer), []).append(own)


def _own_losses(part: Part, _: Any, layer: Any) -> list[Any]:
    """A layer's `_get_own_losses`: those that the part keeps."""
    return part.added_by_layer.get(id(layer), [])


def _clear_losses(part: Part, clear: Any, layer: Any) -> None:
    """A layer's `_clear_losses`, of the part too."""
    part.added_by_layer.pop(id(layer), None)
    clear(layer)  # calls `_clear_losses` of the layers inside it


def _regularizer_of_part(layer: Any, part: Part, regularizer: Any) -> Any:
    """A regularizer of a layer's activities that gives the part's share."""

    def regularize(output: Any) -> Any:
        loss = regularizer(output)
        return _share(
            part,
            Added(
                layer.name, loss, is_divided=_DIVIDES_BY_SAMPLES, is_regularizer=True
            ),
        )

    return regularize


def _share(part: Part, added: Added) -> Any:
    """What is added, so that times the part's weight it is the part's share."""
    if part.replicated:
        return added.tensor
    place = part.added_count
    part.added_count += 1
    exponent = part.combine_rules.exponent(place)
    if part.probing is not None:
        part.probing.added.append(added)
        exponent = part.probing.exponents[place]
    return weighed(added.tensor, part.weight, exponent)


def _moments(part: Part, compute: Any, layer: Any, inputs: Any, mask: Any) -> Any:
    """A layer's moments for batch normalisation; the part notes a masked call.

    The mask is refused later: Keras would wrap an error from here in its own words.
    """
    if mask is not None and layer.synchronized:
        part.masked_batch_norms.append(layer.name)
    if part.probing is None:
        return compute(layer, inputs, mask)
    # The parity check takes fixed moments, as those of parts would differ.
    channels = (inputs.shape[layer.axis],)
    return tf.zeros(channels, inputs.dtype), tf.ones(channels, inputs.dtype)


def _assigned(part: Part, assign: Any, variable: Any, value: Any) -> Any:
    """A variable's `assign`, noting the change."""
    part.changes.append(Change(variable, value, late=bool(part.applied)))
    part.assigns = True
    try:
        return assign(variable, value)
    finally:
        part.assigns = False


def _result(part: Part, compute: Any, metric: Any) -> Any:
    """A metric's result; the part notes its tensors.

    In the logs the result over all parts takes their place.
    """
    result = compute(metric)
    tensors = []
    for place, number in enumerate(keras.tree.flatten(result)):
        tensor = tf.identity(tf.convert_to_tensor(number))
        tensors.append(tensor)
        part.results[id(tensor)] = MetricResult(tensor, metric, place)
    return keras.tree.pack_sequence_as(result, tensors)
