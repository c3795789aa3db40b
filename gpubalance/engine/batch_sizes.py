"""How many samples a tf.data.Dataset has, and in its batches, as far as TensorFlow knows."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

# TensorFlow's classes of datasets that pass batches on; the first is the base of Repeat, Shuffle,
# Prefetch and others. These names and the attribute with the batch's size are TensorFlow's
# internals: of others the size is unknown.
_HANDED_ON = {"UnaryUnchangedStructureDataset", "_ZipDataset", "_ConcatenateDataset"}
_HANDED_ON |= {"_MapDataset", "_ParallelMapDataset"}


def static_batch_of(data: Any) -> int | None:
    """The size that all of a dataset's batches have; None where TensorFlow does not promise it."""
    shape = getattr(tf.nest.flatten(data.element_spec)[0], "shape", None)
    return shape[0] if shape is not None and shape.rank else None


def batch_of(data: Any) -> int | None:
    """The size that a dataset's own `batch` asks for; None if unknown. Some may be smaller."""
    size = getattr(data, "_batch_size", None)
    if size is not None:
        return int(size)
    if _HANDED_ON.isdisjoint(kind.__name__ for kind in type(data).__mro__):
        return None
    sizes = {batch_of(source) for source in data._inputs()}
    return sizes.pop() if len(sizes) == 1 else None


def sample_count_of(data: Any) -> int | None:
    """The samples of a dataset of batches, by those that went into its own `batch`.

    None if unknown, and for one without end.
    """
    batches = int(data.cardinality())
    size = static_batch_of(data)
    if batches < 0:
        return None
    if size is not None:
        return batches * size
    batching = _batching(data)
    if batching is None or int(batching.cardinality()) != batches:
        return None
    (source,) = batching._inputs()
    samples = int(source.cardinality())
    return samples if samples >= 0 else None


def _batching(data: Any) -> Any:
    """The dataset behind this one that makes batches; None if there is none, or several."""
    while getattr(data, "_batch_size", None) is None:
        sources = data._inputs()
        is_passed_on = not _HANDED_ON.isdisjoint(
            kind.__name__ for kind in type(data).__mro__
        )
        if len(sources) != 1 or not is_passed_on:
            return None
        (data,) = sources
    return data
