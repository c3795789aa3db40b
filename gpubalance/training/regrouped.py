"""The warnings about a dataset whose own batches become those of a split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# TensorFlow's datasets that pass batches on unchanged. Their names and the attribute with the batch's size are
# TensorFlow's internals: for others nothing is said.
_HANDED_ON = {"Prefetch", "Map", "ParallelMap", "Options", "Shuffle", "Cache", "MemoryCache", "Take", "Skip", "Shard"}


def told(data: Any, global_batch: int, steps_per_epoch: int | None) -> str:
    """`batches of 200 are taken as 840: 16 steps an epoch are 4 now`; empty if the size of a batch is unknown."""
    shape = _shape(data)
    static = shape[0] if shape is not None and shape.rank else None
    batch = static or _batch_of(data)
    if batch is None or batch == global_batch:
        return ""
    text = f"the dataset's batches of {batch} are taken as {global_batch}, the split's global batch"
    if steps_per_epoch is not None:
        return f"{text}: steps_per_epoch={steps_per_epoch} counts those"
    steps = int(data.cardinality())
    if steps < 1:
        return text
    most = -(-steps * batch // global_batch)
    least = -(-((steps - 1) * batch + 1) // global_batch)  # the last batch may have a single sample
    return f"{text}: {steps} steps an epoch are {'' if static or least == most else 'at most '}{most} now"


def other_batches(shares: Sequence[int], global_batch: int) -> str:
    """The warning about a first step that does not have the split's global batch; else empty."""
    if sum(shares) == global_batch:
        return ""
    return (
        f"this fit takes {sum(shares)} samples a step, {'/'.join(map(str, shares))}, not the split's {global_batch}: "
        f"leave batch_size out or give batches of {global_batch}; gpubalance balance --global-batch {sum(shares)} "
        f"--batch-multiple 1 finds the split of {sum(shares)}"
    )


def _shape(data: Any) -> Any:
    import tensorflow as tf

    return getattr(tf.nest.flatten(data.element_spec)[0], "shape", None)


def _batch_of(data: Any) -> int | None:
    while data is not None:
        size = getattr(data, "_batch_size", None)
        if size is not None:
            return int(size)
        handed_on = type(data).__name__.strip("_").removesuffix("Dataset") in _HANDED_ON
        data = getattr(data, "_input_dataset", None) if handed_on else None
    return None
