"""A dataset of samples or batches, brought into global batches."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def regrouped(data: tf.data.Dataset, model: Any, global_batch: int) -> tf.data.Dataset:
    """The dataset, batched or not, in batches of the split's size; the last one may be smaller.

    Batches that are open stay as they are. All are prefetched: TensorFlow does that by itself, but not for all options.
    """
    if not is_batched(data, model):
        data = data.batch(global_batch, num_parallel_calls=tf.data.AUTOTUNE)
    elif not are_open(data, model) and {shape[0] for shape in _shapes(data)} != {global_batch}:
        data = data.rebatch(global_batch)
    return data.prefetch(tf.data.AUTOTUNE)


def joined(data: tf.data.Dataset, global_batch: int) -> tf.data.Dataset:
    """Batches that are open, as others of that size: each is padded, with zeros, to its longest sample.

    To be measured, not to be trained on: what a user pads with, and whether a mask tells of it, is not known.
    """
    return data.unbatch().padded_batch(global_batch).prefetch(tf.data.AUTOTUNE)


def are_open(data: tf.data.Dataset, model: Any) -> bool:
    """Whether it has batches that may differ in more than the number of samples, as padded sentences do."""
    open_shapes = any(shape.rank is None or None in shape[1:] for shape in _shapes(data))
    return is_batched(data, model) and open_shapes


def is_batched(data: tf.data.Dataset, model: Any) -> bool:
    """Whether all parts begin with the same dimension; where that says nothing, by the model's inputs."""
    shapes = [shape for shape in _shapes(data) if shape.rank is not None]
    if any(shape.rank == 0 for shape in shapes):
        return False
    first = {shape[0] for shape in shapes}
    if first == {None}:
        return True
    inputs = getattr(model, "inputs", None) if getattr(model, "built", False) else None
    if len(first) > 1 or not inputs:
        return len(first) <= 1
    return bool(shapes[0].rank >= min(len(given.shape) for given in inputs))


def _shapes(data: tf.data.Dataset) -> list[tf.TensorShape]:
    """Of each part; of unknown rank where TensorFlow does not say."""
    specs = [getattr(spec, "shape", None) for spec in tf.nest.flatten(data.element_spec)]
    return [tf.TensorShape(None) if shape is None else shape for shape in specs]
