"""Says in the user's words what Keras and TensorFlow say in theirs of samples that do not fit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gpubalance.engine.keras_patches import is_keras_own
from gpubalance.engine.users_errors import own_traceback
from gpubalance.errors import BadInput
from gpubalance.remedies import match

TEXT_LABELS = (
    "number them: names, y = numpy.unique(y, return_inverse=True); in a dataset, "
    "keras.layers.StringLookup"
)
# How Keras' cross-entropies refuse labels of the other one's shape.
_SPARSE = "must have rank (ndim) `target.ndim - 1`"
_DENSE = "must have the same rank (ndim)"
_SHAPES = re.compile(r"target\.shape=\((.*?)\), output\.shape=\((.*?)\)")

_NO_CLASS = re.compile(
    r"label value of (-?\d+) which is outside the valid range of \[0, (\d+)\)"
)

# How a Keras layer refuses an input, in bold type.
_INCOMPATIBLE = re.compile(r"is incompatible with the layer: ([^\n\x1b]+)")


def of_labels(error: BaseException) -> BadInput | None:
    """The error for labels of another loss than the model was compiled with; None for any other."""
    text = str(error)
    shapes = _SHAPES.search(text)
    if not isinstance(error, ValueError) or shapes is None:
        return None
    labels, outputs = (re.findall(r"[^,\s]+", shape) for shape in shapes.groups())
    # How many samples the batch has says nothing: a check tries a few of them
    has = f"the labels (y) have the shape ({', '.join(['batch', *labels[1:]])})"
    if _SPARSE in text and labels[-1] == outputs[-1]:
        return BadInput(
            f"{has}: they are one-hot, and sparse_categorical_crossentropy takes "
            "class numbers",
            remedy="use categorical_crossentropy, or give class numbers: y.argmax(axis=-1)",
        )
    if _DENSE in text and len(labels) < len(outputs):
        return BadInput(
            f"{has}: they are class numbers, and the loss takes one-hot labels, as "
            "categorical_crossentropy does",
            remedy="use sparse_categorical_crossentropy, or keras.utils.to_categorical(y)",
        )
    return None


def no_labels() -> BadInput:
    """The error for data without labels, of a model that needs them."""
    return BadInput(
        "the data has no labels (y)", remedy="give x and y, or a dataset of (x, y)"
    )


def of_label_outside_classes(text: str) -> BadInput | None:
    """The error for a label that is no class of the model, by TensorFlow's text; else None."""
    found = _NO_CLASS.search(text)
    if found is None:
        return None
    label, count = found[1], int(found[2])
    return BadInput(
        f"the data contains the label (y) {label}, but the model has {count} classes: "
        f"0 to {count - 1}",
        remedy="number the classes from 0, in validation_data too, or give the model "
        "one output per class",
    )


def of_graph(
    error: tf.errors.InvalidArgumentError,
    model: Any,
    method: str,
    inputs: Any,
    *,
    validates: bool,
) -> BadInput:
    """The error to raise in place of TensorFlow's, raised when a graph ran in Keras' `method`.

    For `inputs` and `validates` see `of_inputs`.
    """
    text = str(error)
    fault = of_label_outside_classes(text) or of_inputs(
        model, inputs, validates=validates
    )
    if fault is not None:
        return fault
    known = match(text)
    return BadInput(
        f"{method} of the model {model.name} failed:\n{own_traceback(error)}",
        cause=known.cause if known else "",
        remedy=known.remedy if known else "",
    )


def input_specs(batch: Any) -> Any:
    """TensorSpecs of a batch's inputs."""
    # A user's own `train_step` may take more parts than Keras' unpacking knows.
    has_parts = isinstance(batch, tuple | list) and len(batch) > 0
    return tf.nest.map_structure(
        lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype),
        batch[0] if has_parts else batch,
    )


def of_inputs(model: Any, inputs: Any, *, validates: bool) -> BadInput | None:
    """The error for inputs whose shape the model refuses, in Keras' words; else None.

    A step is traced for inputs of any shape that came, so TensorFlow's error is a kernel's.
    `inputs` are TensorSpecs; if it `validates`, they are those of `fit`'s validation_data.
    """
    name = "x of validation_data" if validates else "x"
    try:
        model(tf.nest.map_structure(_symbolic, inputs))
    except ValueError as error:
        found = _INCOMPATIBLE.search(str(error))
        if found is None:
            return None
        return BadInput(
            f"{name} does not fit the model {model.name}: {found[1]}",
            remedy=f"give {name} the shape of the model's inputs",
        )
    # Whatever the user's own layers raise: that is not of the data's shape.
    except Exception:  # noqa: BLE001
        return None
    return None


def _symbolic(tensor: Any) -> Any:
    return keras.KerasTensor(tuple(tensor.shape), tensor.dtype.name)


def of_varying_shapes(model: Any, batch: Any) -> BadInput | None:
    """The error for labels as deep as the model's output and of another shape; None if unknown."""
    output = model.outputs[0] if len(model.outputs) == 1 else None
    labels = batch[1] if isinstance(batch, tuple | list) and len(batch) > 1 else None
    shape = getattr(labels, "shape", None)
    if output is None or shape is None or len(shape) != len(output.shape):
        return None
    given, made = tuple(shape[1:]), tuple(output.shape[1:])
    if None in made or given == made:
        return None
    y, outputs = ("x".join(map(str, sizes)) for sizes in (given, made))
    return BadInput(
        f"the labels (y) of a sample have the shape {y}, but the model's output has "
        f"the shape {outputs}",
        remedy="reshape the labels to the outputs' shape, in the dataset's map",
    )


def refuse_text(model: Any, inputs: Any, labels: Any) -> None:
    """Raises BadInput for labels that are text, and for such inputs where the model takes numbers.

    A `train_step` of the user's own may take whatever it is given.
    """
    if not is_keras_own(type(model).train_step):
        return
    if any(map(_is_text, keras.tree.flatten(labels))):
        raise BadInput("the labels (y) are text", remedy=TEXT_LABELS)
    takes = tf.nest.flatten(getattr(model, "inputs", None) or ())
    takes_text = not takes or any(tensor.dtype == "string" for tensor in takes)
    if not takes_text and any(map(_is_text, keras.tree.flatten(inputs))):
        raise BadInput(
            "the inputs (x) are text, but the model takes numbers",
            remedy="convert text to numbers in the dataset's map, for example with "
            "keras.layers.TextVectorization",
        )


def _is_text(values: Any) -> bool:
    """Whether these are strings: a list's item, a tensor, or an array of any kind of them."""
    if isinstance(values, str | bytes):
        return True
    dtype = getattr(values, "dtype", None)
    if dtype is None:
        return False
    if getattr(dtype, "kind", "") == "O" and getattr(values, "size", 0):
        # A pandas Series has no `flat`
        return isinstance(np.asarray(values).flat[0], str | bytes)
    return dtype == tf.string or getattr(dtype, "kind", "") in ("U", "S")


def refuse_mismatched_lengths(parts: Sequence[tuple[str, Any]]) -> None:
    """Raises BadInput unless all arrays of all parts, such as ("x", x), have as many samples."""
    lengths: dict[int, str] = {}
    for name, values in parts:
        for length in _lengths(values):
            lengths.setdefault(length, name)
    if len(lengths) > 1:
        (first, name), (second, other), *_ = lengths.items()
        raise BadInput(
            f"{name} has {first} samples, and {other} has {second}",
            remedy="give the same number of both: they are taken in pairs",
        )


def _lengths(values: Any) -> Iterable[int]:
    for value in keras.tree.flatten(values):
        shape = getattr(value, "shape", None)
        if shape is not None and len(shape) and shape[0] is not None:
            yield int(shape[0])
