"""The size of a dataset's own batches, and the warnings where they become those of a split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# TensorFlow's classes of datasets that pass batches on; the first is the base of Repeat, Shuffle, Prefetch and others.
# These names and the attribute with the batch's size are TensorFlow's internals: of others the size is unknown.
_HANDED_ON = {
    "UnaryUnchangedStructureDataset",
    "_MapDataset",
    "_ParallelMapDataset",
    "_ConcatenateDataset",
    "_ZipDataset",
}


def told(data: Any, global_batch: int, steps_per_epoch: int | None) -> str:
    """`batches of 200 are taken as 840: 16 steps an epoch are 4 now`; empty if the size of a batch is unknown."""
    static = static_batch_of(data)
    batch = static or batch_of(data)
    if batch is None or batch == global_batch:
        return ""
    text = f"the dataset's batches of {batch} are taken as {global_batch}, the split's global batch"
    if steps_per_epoch is not None:
        return f"{text}: steps_per_epoch={steps_per_epoch} counts those"
    steps = int(data.cardinality())
    if steps < 1:
        return text
    most = -(-steps * batch // global_batch)
    return f"{text}: {steps} steps an epoch are {'' if static else 'at most '}{most} now"  # some may be smaller


def other_batches(shares: Sequence[int], global_batch: int) -> str:
    """The warning about a first step that does not have the split's global batch; else empty."""
    if sum(shares) == global_batch:
        return ""
    return (
        f"this fit takes {sum(shares)} samples a step, {'/'.join(map(str, shares))}, not the split's {global_batch}: "
        f"leave batch_size out or give batches of {global_batch}; gpubalance balance --global-batch {sum(shares)} "
        f"--batch-multiple 1 finds the split of {sum(shares)}"
    )


def static_batch_of(data: Any) -> int | None:
    """The size that all of a dataset's batches have; None where TensorFlow does not promise it."""
    import tensorflow as tf

    shape = getattr(tf.nest.flatten(data.element_spec)[0], "shape", None)
    return shape[0] if shape is not None and shape.rank else None


def batch_of(data: Any) -> int | None:
    """The size that the dataset's own `batch` gives its batches, of which some may be smaller; None if unknown."""
    size = getattr(data, "_batch_size", None)
    if size is not None:
        return int(size)
    hands_on = not _HANDED_ON.isdisjoint(kind.__name__ for kind in type(data).__mro__)
    sizes = {batch_of(one) for one in data._inputs()} if hands_on else set()
    return sizes.pop() if len(sizes) == 1 else None
