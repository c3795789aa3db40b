"""What a user hands to `fit`, `evaluate` or `predict`, brought into global batches of the split's size."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from gpubalance.errors import BadInput


def in_batches_of(global_batch: int, model: Any, options: dict[str, Any]) -> None:
    """Changes the arguments of a Keras method so that datasets and arrays come in batches of that size.

    Batches that the user made otherwise (a `batch_size`, a PyDataset, a generator) stay as they are.
    """
    for name in ("x", "validation_data"):
        if isinstance(options.get(name), tf.data.Dataset):
            options[name] = _regrouped(options[name], model, global_batch)
    if _is_array(options.get("x")) and options.get("batch_size") is None:
        options["batch_size"] = global_batch


def check(options: dict[str, Any], *, steps: int | None, devices: int, trains: bool) -> None:
    """Raises BadInput for an endless dataset without a number of steps.

    Also, where it `trains`, for a batch_size with fewer samples than devices.
    """
    data, size = options.get("x"), options.get("batch_size")
    if isinstance(data, tf.data.Dataset):
        if steps is None and int(data.cardinality()) == tf.data.INFINITE_CARDINALITY:
            raise BadInput("the dataset never ends, and an epoch would not either", remedy="give steps_per_epoch")
    elif trains and size is not None and size < devices:
        raise BadInput(
            f"a batch of {size} can't be shared among {devices} devices",
            remedy="give a larger batch_size, or a split over fewer devices",
        )


def _regrouped(data: tf.data.Dataset, model: Any, global_batch: int) -> tf.data.Dataset:
    """The dataset, batched or not, in batches of the split's size; the last one may be smaller.

    Batches that differ in more than the number of samples, as padded sentences do, stay as they are.
    """
    specs = tf.nest.flatten(data.element_spec)
    if not is_batched(data, model):
        return data.batch(global_batch, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    shapes = [getattr(spec, "shape", tf.TensorShape(None)) for spec in specs]
    if any(shape.rank is None or None in shape[1:] for shape in shapes):
        return data
    return (
        data
        if {shape[0] for shape in shapes} == {global_batch}
        else data.rebatch(global_batch).prefetch(tf.data.AUTOTUNE)
    )


def _is_array(data: Any) -> bool:
    """Whether Keras makes the batches."""
    return not isinstance(data, (tf.data.Dataset, keras.utils.PyDataset)) and not hasattr(data, "__next__")


def is_batched(data: tf.data.Dataset, model: Any) -> bool:
    """Whether all parts begin with the same dimension; where that says nothing, by the model's inputs."""
    specs = tf.nest.flatten(data.element_spec)
    shapes = [spec.shape for spec in specs if getattr(spec, "shape", None) is not None and spec.shape.rank is not None]
    if any(shape.rank == 0 for shape in shapes):
        return False
    first = {shape[0] for shape in shapes}
    if first == {None}:
        return True
    inputs = getattr(model, "inputs", None) if getattr(model, "built", False) else None
    if len(first) > 1 or not inputs:
        return len(first) <= 1
    return bool(shapes[0].rank >= min(len(given.shape) for given in inputs))
