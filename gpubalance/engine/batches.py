"""A dataset of samples or batches, brought into global batches."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def regrouped(data: tf.data.Dataset, model: Any, global_batch: int) -> tf.data.Dataset:
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
