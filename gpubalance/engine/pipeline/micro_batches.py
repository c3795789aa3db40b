"""What a pipeline trains on: micro-batches, and the loss of the model's outputs for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine import keras_inside
from gpubalance.engine.losses import CompiledLoss, Loss
from gpubalance.engine.pipeline.calls import Calls
from gpubalance.errors import Refused


@dataclass(frozen=True)
class MicroBatch:
    """The model's inputs by their slots, labels and perhaps sample weights, of so many samples."""

    inputs: Mapping[int, Any]
    labels: tuple[Any, ...]
    samples: int


def micro_batch_of(data: Any, calls: Calls) -> MicroBatch:
    """Of (inputs, labels) or (inputs, labels, weights), as a model's `fit` takes them."""
    inputs, *labels = data
    tensors = {}
    for slot, value in zip(calls.inputs, keras.tree.flatten(inputs), strict=True):
        symbol = calls.tensors[slot]
        tensor = tf.cast(value, symbol.dtype)
        if len(tensor.shape) + 1 == len(symbol.shape):
            tensor = tf.expand_dims(tensor, -1)
        tensors[slot] = tensor
    tensors_of = tf.nest.map_structure(tf.convert_to_tensor, tuple(labels))
    return MicroBatch(tensors, tensors_of, int(next(iter(tensors.values())).shape[0]))


class OutputsLoss:
    """Σ of the samples' losses by a model's outputs."""

    def __init__(self, model: Any, calls: Calls, loss: Loss | CompiledLoss) -> None:
        self._structure = keras_inside.graph_of(model).output  # type: ignore[union-attr]
        self._slots = calls.outputs
        self._loss = loss

    def of(self, values: Mapping[int, Any], labels: Any, *weights: Any) -> Any:
        """By all tensors of the last section; for its trace. Raises Refused for a loss that is not a sum over samples.

        That is a mean over what a mask leaves, or over the sample weights: of a micro-batch it is not a part of that
        of the batch.
        """
        outputs = [values[slot] for slot in self._slots]
        if isinstance(self._loss, CompiledLoss):
            reductions = set(_reductions(self._loss))
            if any(keras_inside.mask_of(one) is not None for one in outputs) and reductions - {"sum", "none", None}:
                self._refuse("what a mask leaves of a batch")
            if weights and "mean_with_sample_weight" in reductions:
                self._refuse("the sample weights of a batch")
        return self._loss.sum(labels, keras.tree.pack_sequence_as(self._structure, outputs), *weights)

    def _refuse(self, what: str) -> None:
        raise Refused(
            f"the model's loss divides by {what}, so its micro-batches do not add up to it",
            remedy="compile it with a loss whose reduction is 'sum', or train it on one device",
        )


def _reductions(loss: CompiledLoss) -> Sequence[str | None]:
    given = keras.tree.flatten(getattr(loss.function, "_user_loss", None))
    return [getattr(one, "reduction", "sum_over_batch_size") for one in given]
