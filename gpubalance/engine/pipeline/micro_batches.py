"""What a pipeline trains on: micro-batches, and their loss. What they change is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import keras
import tensorflow as tf

from gpubalance.engine import keras_patches
from gpubalance.engine.pipeline.blocks import Calls
from gpubalance.engine.step import built
from gpubalance.errors import Refused
from gpubalance.system.versions import numbers

_MEANS = {"mean", "mean_with_sample_weight", "sum_over_batch_size"}


@dataclass(frozen=True)
class MicroBatch:
    """The model's inputs by slot, and (labels,) or (labels, sample weights)."""

    inputs: Mapping[int, Any]
    labels: tuple[Any, ...]
    samples: int


def micro_batch_of(data: Any, calls: Calls) -> MicroBatch:
    """A micro-batch from (inputs, labels) or (inputs, labels, weights), as `fit` takes them."""
    inputs, *labels = data
    tensors = keras_patches.inputs_of(calls.function, inputs)
    return MicroBatch(
        inputs=dict(zip(calls.inputs, tensors, strict=True)),
        labels=tf.nest.map_structure(tf.convert_to_tensor, tuple(labels)),
        samples=int(tensors[0].shape[0]),
    )


def part_of_loss(
    compiled: Any, outputs: Any, samples: Any, total: Any, labels: Any, *weights: Any
) -> Any:
    """The part that a micro-batch of `samples` has of the compiled loss of `total` samples.

    Called in a trace. Raises Refused for a loss that divides by the sample weights.
    """
    reductions = set(reductions_of(compiled))
    if weights and "mean_with_sample_weight" in reductions:
        refuse_loss("the sample weights of a batch")
    loss = tf.cast(compiled(labels, outputs, *weights), tf.float32)
    if reductions == {"sum"}:
        return loss
    return loss * samples / total


def refuse_model(model: Any) -> None:
    """Raises Refused for a model with its own step, or with layers or a loss that parts change."""
    for name in ("train_step", "test_step", "predict_step", "compute_loss"):
        if getattr(type(model), name) is not getattr(keras.Model, name):
            raise Refused(
                f"the model {model.name} has its own {name}, which runs all layers in "
                "one go",
                remedy="leave it out: layers are trained with the compiled loss, "
                "compile(optimizer, loss)",
            )
    built.check(model, trains=True)
    built.refuse_gradients_that_do_not_add_up(model)
    if numbers(keras.__version__) < (3, 14):
        for layer in model._flatten_layers():
            if getattr(layer, "activity_regularizer", None):
                raise Refused(
                    f"Keras {keras.__version__} sums the activity regulariser of the "
                    f"layer {layer.name} over a batch; micro-batches need the mean",
                    remedy="pip install 'keras>=3.14'",
                )
    if model.compiled:
        _refuse_compiled(model)


def _refuse_compiled(model: Any) -> None:
    if model.jit_compile:
        raise Refused(
            f"the model {model.name} is compiled with jit_compile=True, which works "
            "on one device only",
            remedy="compile it with jit_compile=False. (A file has jit_compile=True if "
            '"auto" chose XLA on a GPU before the model was saved.)',
        )
    losses = keras_patches.losses_of(model._compile_loss)
    if not losses:
        raise Refused(
            f"the model {model.name} is compiled without a loss, and the losses that "
            "its layers add are not enough to train it in micro-batches",
            remedy="compile(optimizer, loss)",
        )
    if any(keras_patches.mask_of(output) is not None for output in model.outputs):
        raise Refused(
            f"an output of the model {model.name} has a mask, which the output loses "
            "when it leaves its device, so evaluate and metrics would count padding",
            remedy="leave the mask out and give padding a sample weight of 0, or train "
            "the model on one device or in a split (gpubalance balance)",
        )
    reductions = set(reductions_of(model._compile_loss))
    if reductions == {"sum"}:
        return
    if any(map(keras_patches.ignores_class, losses)):
        refuse_loss("the number of values that ignore_class leaves in a batch")
    if "sum" in reductions:
        refuse_loss("the number of samples for some outputs and not for others")
    if not reductions <= _MEANS:
        refuse_loss("something other than the number of samples")


def refuse_loss(what: str) -> NoReturn:
    """Raises Refused for a loss that its micro-batches' losses do not add up to."""
    raise Refused(
        f"the model's loss divides by {what}, so the losses of micro-batches do not "
        "add up to it",
        remedy="compile it with losses whose reduction is 'sum', or train it on one device",
    )


def reductions_of(compiled: Any) -> list[str | None]:
    """The reduction of each loss that a model was compiled with."""
    losses = keras_patches.losses_of(compiled)
    return [getattr(loss, "reduction", "sum_over_batch_size") for loss in losses]
