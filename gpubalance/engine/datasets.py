"""A user's datasets: how many samples they have, in which batches, and how these are made again."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from gpubalance.errors import BadInput

_PARTS = ("x", "y", "sample_weight")  # of a batch
# TensorFlow's classes of datasets that pass batches on; the first is the base of Repeat, Shuffle,
# Prefetch and others. These names and the attribute with the batch's size are TensorFlow's
# internals: of others the size is unknown.
_HANDED_ON = {"UnaryUnchangedStructureDataset", "_ZipDataset", "_ConcatenateDataset"}


def cleaned(batch: Any) -> Any:
    """The batch as tensors, without missing parts at its end, and with a weight for each sample.

    Keras gives an empty Optional for labels or weights that it lacks, and arrays as they are in
    `train_on_batch` and the like.
    """
    # Most batches have only tensors, and a map takes ten times as long as this look at them.
    if not all(isinstance(part, tf.Tensor) for part in tf.nest.flatten(batch)):
        with tf.device("/CPU:0"):
            batch = tf.nest.map_structure(_as_tensor, batch)
    if not isinstance(batch, tuple):
        return batch
    parts = list(batch)
    while parts and _is_missing(parts[-1]):
        parts.pop()
    return _weight_each(tuple(parts))


def _as_tensor(part: Any) -> Any:
    if isinstance(part, tf.Tensor) or not hasattr(part, "__array__"):
        return part
    return tf.convert_to_tensor(part)


def _is_missing(part: Any) -> bool:
    return part is None or isinstance(part, tf.experimental.Optional)


def _weight_each(batch: Any) -> Any:
    """The batch with a weight for each sample.

    Keras also takes one weight for all samples, or None for some outputs, which stands for 1.
    """
    if not any(_is_number(one) or _is_missing(one) for one in _weights_in(batch)):
        return batch
    inputs, labels, weights = batch
    count = tf.shape(tf.nest.flatten(inputs)[0])[:1]

    def filled(weight: Any) -> Any:
        if _is_missing(weight):
            return tf.ones(count)
        return tf.fill(count, weight) if _is_number(weight) else weight

    return inputs, labels, tf.nest.map_structure(filled, weights)


def _has_one_weight(batch: Any) -> bool:
    """Whether a batch, or a dataset's element_spec, has a sample weight that is one number."""
    return any(map(_is_number, _weights_in(batch)))


def _weights_in(batch: Any) -> list[Any]:
    """The sample weights of a batch, or of a dataset's element_spec; empty without any."""
    has_weights = isinstance(batch, tuple) and len(batch) == 3
    return tf.nest.flatten(batch[2]) if has_weights else []


def _is_number(part: Any) -> bool:
    return getattr(getattr(part, "shape", None), "rank", None) == 0


def samples_of(batch: Any) -> int:
    """The number of samples in a batch.

    Raises BadInput if its parts disagree or are not dense tensors.
    """
    sizes = set()
    for part in tf.nest.flatten(batch):
        if not isinstance(part, tf.Tensor):
            raise _not_dense(batch, part)
        sizes.add(int(part.shape[0]))
    if len(sizes) != 1:
        raise BadInput(
            "the inputs, outputs and weights of a batch have different numbers of "
            f"samples: {sorted(sizes)}",
            remedy="each input, output and sample_weight needs one entry per sample",
        )
    return sizes.pop()


def _not_dense(batch: Any, part: Any) -> BadInput:
    """The error for a part of the batch that can't be cut into the devices' samples."""
    kind = type(part).__name__
    name = _name_in(batch, part)
    if part is None and name.startswith("y"):
        return BadInput(
            f"{name} is missing",
            remedy="give labels of any value, if the loss of this output is None",
        )
    if part is None:
        return BadInput(
            f"{name} is None, which a split can't divide among devices",
            remedy="build the model without this optional input, or give an array",
        )
    if isinstance(part, tf.RaggedTensor):
        return BadInput(
            f"{name} is a {kind} with rows of different length, which cannot be split "
            "over devices",
            remedy=f"pad it with {name}.to_tensor(): for a dataset in a map() after "
            "batch(), for a generator or PyDataset inside it, for an array before fit. "
            "Embedding(mask_zero=True) ignores the zeros",
        )
    dense = "convert it to a dense tensor"
    if isinstance(part, tf.SparseTensor):
        dense += f", tf.sparse.to_dense({name}), in the dataset's map"
    return BadInput(
        f"{name} is a {kind}, which can't be split over devices", remedy=dense
    )


def _name_in(batch: Any, part: Any) -> str:
    """What a user calls this part of a batch: `x["items"]`, `y`; of a step's own, `batch["id"]`."""
    places = (
        place for place, one in keras.tree.flatten_with_path(batch) if one is part
    )
    place = next(places, ())
    name = "batch"
    if isinstance(batch, tuple) and len(batch) <= len(_PARTS) and place:
        name = _PARTS[place[0]]
        place = place[1:]
    keys = (f'["{key}"]' if isinstance(key, str) else f"[{key}]" for key in place)
    return name + "".join(keys)


def regrouped(data: tf.data.Dataset, model: Any, global_batch: int) -> tf.data.Dataset:
    """The dataset, batched or not, in batches of that size; the last one may be smaller.

    Open batches stay as they are. All are prefetched, which TensorFlow itself does only under some
    options.
    """
    if not is_batched(data, model):
        data = data.batch(global_batch, num_parallel_calls=tf.data.AUTOTUNE)
        return data.prefetch(tf.data.AUTOTUNE)
    data = _with_weights(data)
    if not has_open_shapes(data, model):
        sizes = {shape[0] for shape in _shapes_of(data.element_spec)}
        if sizes != {global_batch}:
            data = data.rebatch(global_batch)
    return data.prefetch(tf.data.AUTOTUNE)


def joined(data: tf.data.Dataset, global_batch: int) -> tf.data.Dataset:
    """Open batches, regrouped into that size, each padded with zeros to its longest sample.

    They serve to measure, not to train: what a user pads with, and whether a mask hides it, is
    unknown.
    """
    return (
        _with_weights(data)
        .unbatch()
        .padded_batch(global_batch)
        .prefetch(tf.data.AUTOTUNE)
    )


def _with_weights(data: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset of batches, in which each sample has its own weight."""
    if _has_one_weight(data.element_spec):
        return data.map(lambda *parts: _weight_each(parts))
    return data


def has_open_shapes(data: tf.data.Dataset, model: Any) -> bool:
    """Whether its batches may differ in more than the number of samples, as padded sentences do."""
    if not is_batched(data, model):
        return False
    shapes = _shapes_of(data.element_spec)
    return any(shape.rank is None or None in shape[1:] for shape in shapes)


def is_batched(data: tf.data.Dataset, model: Any) -> bool:
    """Whether it has batches: if all parts have the same first dimension.

    In doubt the rank of the model's inputs tells. A sample weight that is one number may be that of
    a batch. Where neither an open first dimension nor a model's inputs tell, it is a sample's.
    """
    has_one_weight = _has_one_weight(data.element_spec)
    parts = data.element_spec[:2] if has_one_weight else data.element_spec
    shapes = [shape for shape in _shapes_of(parts) if shape.rank is not None]
    if any(shape.rank == 0 for shape in shapes):
        return False
    first = {shape[0] for shape in shapes}
    if first <= {None}:
        return True
    if len(first) > 1:
        return False
    inputs = getattr(model, "built", False) and getattr(model, "inputs", None)
    if not inputs:
        return not has_one_weight
    return bool(shapes[0].rank >= min(len(tensor.shape) for tensor in inputs))


def _shapes_of(element_spec: Any) -> list[tf.TensorShape]:
    """The shape of each part, of unknown rank if TensorFlow does not say."""
    unknown = tf.TensorShape(None)
    specs = tf.nest.flatten(element_spec)
    return [getattr(spec, "shape", None) or unknown for spec in specs]


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
