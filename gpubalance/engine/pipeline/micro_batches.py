"""What a pipeline trains on: micro-batches, and their loss by the model's outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine import keras_inside
from gpubalance.engine.pipeline import refuse
from gpubalance.engine.pipeline.calls import Calls


@dataclass(frozen=True)
class MicroBatch:
    """The model's inputs by slot, and (labels,) or (labels, sample weights), for `samples` samples."""

    inputs: Mapping[int, Any]
    labels: tuple[Any, ...]
    samples: int


def micro_batch_of(data: Any, calls: Calls) -> MicroBatch:
    """A micro-batch from (inputs, labels) or (inputs, labels, weights), as a model's `fit` takes them."""
    inputs, *labels = data
    tensors = dict(zip(calls.inputs, keras_inside.inputs_of(calls.function, inputs), strict=True))
    tensors_of = tf.nest.map_structure(tf.convert_to_tensor, tuple(labels))
    return MicroBatch(tensors, tensors_of, int(next(iter(tensors.values())).shape[0]))


class OutputsLoss:
    """A micro-batch's part of a batch's loss, by the model's outputs: of the loss that it was compiled with."""

    def __init__(self, model: Any, calls: Calls) -> None:
        self._structure = keras_inside.graph_of(model).output  # type: ignore[union-attr]
        self._slots = calls.outputs
        self._loss = model._compile_loss

    def part(self, values: Mapping[int, Any], total: Any, labels: Any, *weights: Any) -> Any:
        """A micro-batch's part of the loss of `total` samples, from the last section's tensors; called in its trace.

        Raises Refused for a loss that divides by the sample weights.
        """
        outputs = self.packed(values)
        reductions = set(refuse.reductions_of(self._loss))
        if weights and "mean_with_sample_weight" in reductions:
            refuse.loss("the sample weights of a batch")
        loss = tf.cast(self._loss(labels, outputs, *weights), tf.float32)
        if reductions == {"sum"}:
            return loss
        return loss * tf.cast(tf.shape(keras.tree.flatten(outputs)[0])[0], tf.float32) / total

    def packed(self, values: Mapping[int, Any]) -> Any:
        """The model's outputs in its own structure."""
        return keras.tree.pack_sequence_as(self._structure, [values[slot] for slot in self._slots])
