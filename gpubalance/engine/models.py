"""Builds the models to train: what they are compiled with, their labels, and their local layers."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from gpubalance.engine import runtime
from gpubalance.engine.keras_patches import (
    function_of,
    ignores_class,
    is_keras_own,
    losses_of,
    name_of,
)
from gpubalance.engine.step.built import STATEFUL, STATELESS, stateful_layers
from gpubalance.engine.user_functions import user_function
from gpubalance.errors import BadInput
from gpubalance.results.common import LocalLayers
from gpubalance.settings.choices import SAVED_MODEL, refuse_name, refuse_unknown_model
from gpubalance.settings.settings import Settings
from gpubalance.text import clean


def local_layers_of(model: Any) -> LocalLayers:
    """Which they are in a model."""
    drawing = filter(_draws, model._flatten_layers())
    random = Counter(type(layer).__name__ for layer in drawing)
    return LocalLayers(
        batch_normalizations=len(_unsynchronised(model)),
        random=tuple(sorted(random.items())),
    )


def unsynchronised_text(model: Any, *, micro: bool, xla: bool) -> str:
    """The warning about batch normalisation by each device's own samples; else empty.

    A step in `micro`-batches or with `xla` can't synchronise it.
    """
    names = [layer.name for layer in _unsynchronised(model)]
    if not names:
        return ""
    which = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    steps = [name for name, on in (("micro-batches", micro), ("XLA", xla)) if on]
    without = f" without {' and '.join(steps)}" if steps else ""
    return (
        f"the model {model.name} normalises each device's own samples ({which}), so "
        "the result differs from training on one device. To get the same result, use "
        f"BatchNormalization(synchronized=True){without}"
    )


def _unsynchronised(model: Any) -> list[Any]:
    """The layers that normalise each device's own samples: a frozen one takes no samples."""
    found = []
    for layer in model._flatten_layers():
        is_normalising = isinstance(layer, keras.layers.BatchNormalization)
        if is_normalising and layer.trainable and not layer.synchronized:
            found.append(layer)
    return found


def compiled_text(model: Any) -> str:
    """`Adam and SparseCategoricalCrossentropy`: what a model is compiled with."""
    losses = dict.fromkeys(map(name_of, losses_of(model._compile_loss)))
    return " and ".join([type(model.optimizer).__name__, *losses])


def _draws(layer: Any) -> bool:
    """Whether a layer draws random numbers: it has a generator, and no rate of 0 for it."""
    rates = [getattr(layer, name, None) for name in ("dropout", "recurrent_dropout")]
    known = [rate for rate in rates if isinstance(rate, int | float)]
    if known and not any(known):
        return False
    values = vars(layer).values()
    return any(isinstance(value, keras.random.SeedGenerator) for value in values)


_VECTORISED = (
    "vectorise the text in dataset(), and let the model take the vectors as its input: "
    "dataset.map(lambda text, y: (vectorizer(text), y)) with keras.layers.TextVectorization"
)


def make_model(settings: Settings, *, takes_data: bool = True) -> Any:
    """The model. Call it in the scope for its variables.

    Raises BadInput if it can't be trained here; its remedy has `--data` only if the command
    `takes_data`. An error in the user's own code passes through unchanged, so that its own
    traceback is shown.
    """
    name = settings.model
    model = _maker(name)()
    if not isinstance(model, keras.Model):
        raise BadInput(
            f"--model {name} returned a value of type {type(model).__name__}, not a "
            "Keras model",
            remedy="return a Keras model from that function",
        )
    own_samples = (
        "give data of your own, --data FILE.py:FUNCTION, or " if takes_data else ""
    )
    problems = list(
        _problems(model, needs_shapes=settings.data is None, own_samples=own_samples)
    )
    if problems:
        problem, remedy = problems[0]
        raise BadInput(f"--model {name}{problem}", remedy=remedy)
    # That of a policy that the user's code sets, or that the model was saved with.
    own_precision = runtime.precision_of(model)
    if own_precision not in (None, settings.precision):
        raise BadInput(
            f"--model {name} trains in {own_precision}, but would be measured in "
            f"{settings.precision}",
            remedy=f"--precision {own_precision} measures it as it trains",
        )
    return model


def _maker(name: str) -> Callable[[], Any]:
    """The function that makes the model of that name. Raises BadInput if there is none.

    A file of the user's may build one when it is imported.
    """
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    refuse_name("--model", name)
    if ":" in name:
        return user_function(name, "--model")
    if name.lower().endswith(SAVED_MODEL):
        return lambda: _saved_model(Path(name))
    applications = dict(inspect.getmembers(keras.applications, inspect.isfunction))
    refuse_unknown_model(name, applications)
    return lambda: applications[name](weights=None)


def probe_model() -> Any:
    """A heavy classifier of 28×28×1 images: 78.9 M parameters, about 4 GFLOP forward a sample."""
    return _vgg("probe", (32, 64, 128, 256), (512,) * 4, (2048,) * 5 + (1024,))


def small_model() -> Any:
    """The probe model's structure with so little work that a profile's pace sets the time.

    It trains with SGD: Adam's update, traced for each weight on each device, would be three
    quarters of the start.
    """
    model = _vgg(
        "small", (1, 1, 1, 1), (2,) * 4, (8,) * 6, keras.layers.AveragePooling2D(4)
    )
    model.optimizer = keras.optimizers.SGD()
    return model


def _vgg(
    name: str,
    first: tuple[int, ...],
    second: tuple[int, ...],
    dense: tuple[int, ...],
    *before: Any,
) -> Any:
    layers = keras.layers
    body = [layers.Input((28, 28, 1)), *before]
    for counts in (first, second):
        for filters in counts:
            body.append(layers.Conv2D(filters, 3, padding="same", activation="relu"))
        body.append(layers.MaxPooling2D(2))
    body.append(layers.Flatten())
    for units in dense:
        body.append(layers.Dense(units, activation="relu"))
    # The probabilities stay in float32 under mixed precision, as a loss in float16 is inaccurate.
    body.append(layers.Dense(10, activation="softmax", dtype="float32"))
    return keras.Sequential(body, name=name)


_BUILT_IN = {"probe": probe_model, "small": small_model}


def _saved_model(path: Path) -> Any:
    """Loads a saved model. Raises BadInput for a file that is missing or that safe mode refuses."""
    if not path.is_file():
        raise BadInput(f"--model: the file {path} does not exist")
    try:
        return keras.saving.load_model(path, safe_mode=True)
    except Exception as error:  # noqa: BLE001  (Keras may raise anything)
        raise BadInput(
            f"--model {path} cannot be loaded in Keras' safe mode: "
            f"{clean(str(error), 400)}",
            remedy="give a function that builds it: file.py:function",
        ) from None


def input_shapes(model: Any) -> tuple[tuple[int | None, ...], ...] | None:
    """The shape of a sample of each input, None for an open dimension; None if there are none."""
    try:
        tensors = tf.nest.flatten(model.inputs or ())
    except (AttributeError, ValueError):
        # A subclassed model, or a Sequential that is not built
        return None
    return tuple(tuple(tensor.shape[1:]) for tensor in tensors) or None


def facts_of(model: Any) -> dict[str, Any]:
    """What a result records about the model. `gradient_bytes` is what an all-reduce moves."""
    parameters = gradient_bytes = 0
    for variable in model.trainable_variables:
        size = math.prod(variable.shape)
        parameters += size
        gradient_bytes += size * tf.as_dtype(variable.dtype).size
    return {
        "name": str(model.name),
        "parameters": parameters,
        "gradient_bytes": gradient_bytes,
        "input_shapes": input_shapes(model),
        "optimizer": _facts_of_optimizer(model, parameters),
    }


def _facts_of_optimizer(model: Any, parameters: int) -> dict[str, Any] | None:
    """None until it is built, as only then it is known what it holds."""
    optimizer = getattr(model, "optimizer", None)
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
    if inner is None or not inner.built or not parameters:
        return None
    # All but its scalars, such as the learning rate.
    held = sum(
        math.prod(variable.shape) for variable in inner.variables if len(variable.shape)
    )
    return {"name": type(inner).__name__, "per_weight": round(held / parameters, 2)}


def _problems(
    model: Any, *, needs_shapes: bool, own_samples: str
) -> Iterator[tuple[str, str]]:
    """Why a model can't be trained, and what to do: for random samples its shapes must be known."""
    # First, as such a layer wants batches of one size.
    for layer in stateful_layers(model):
        yield f": the layer {layer.name} {STATEFUL}", STATELESS
    inputs = tf.nest.flatten(getattr(model, "inputs", None) or ())
    if needs_shapes and not (model.built and inputs):
        remedy = f"{own_samples}return a functional or Sequential model that begins with an Input"
        yield ": its input shapes are unknown", remedy
    for tensor in inputs:
        of_input = f": input {tensor.name}"
        batch, *sizes = tensor.shape
        if tf.as_dtype(tensor.dtype) == tf.string:
            problem = (
                f"{of_input} is text, which no GPU can hold: split.fit trains such a "
                "model, but its steps cannot be measured"
            )
            yield problem, _VECTORISED
        if batch is not None:
            remedy = (
                "leave the batch dimension open: keras.Input(shape) without batch_size"
            )
            yield f"{of_input} takes only batches of {batch}", remedy
        if needs_shapes and None in sizes:
            remedy = (
                "the Input a fixed shape: with random samples only the batch dimension "
                "may be open"
            )
            problem = f"{of_input} has the shape {tuple(tensor.shape)}"
            yield problem, f"{own_samples or 'give '}{remedy}"
    if model.built and not model.trainable_variables:
        yield " has no weights to train", "give it a layer with weights, such as Dense"


Shape: TypeAlias = tuple[int | None, ...]  # None is an open dimension


@dataclass(frozen=True)
class Target:
    """One output's labels: the shape of a sample's, and how many classes they have.

    0 classes are real numbers from 0 to 1.
    """

    shape: Shape
    classes: int


def compile_for(model: Any, labels: Any = None) -> list[Target]:
    """Compiles a model with its optimizer, else Adam, and a loss for each output, or its labels.

    Returns the labels that suit its outputs; empty if some are given. Softmax outputs get sparse
    categorical cross-entropy, sigmoid ones the binary one, others squared error. The last layer's
    activation decides. Raises ValueError for an output of unknown shape, and for labels that suit
    no output.
    """
    targets: list[Target] = []
    if labels is None:
        targets = [_usual(tensor) for tensor in model.outputs]
        shapes = [target.shape for target in targets]
    else:
        shapes = [_shape(label) for label in in_order(model, labels)]
    losses = [_loss_for(*pair) for pair in zip(model.outputs, shapes, strict=True)]
    optimizer = getattr(model, "optimizer", None) or keras.optimizers.Adam()
    model.compile(optimizer, as_outputs(model, losses), jit_compile=False)
    return targets


def in_order(model: Any, labels: Any) -> list[Any]:
    """Labels by the model's outputs. Raises ValueError unless there is one for each."""
    names = getattr(model, "output_names", ())  # a Sequential has none
    if isinstance(labels, dict) and names:
        if set(labels) != set(names):
            raise ValueError(
                f"labels for {', '.join(sorted(labels))}, but the model's outputs are "
                f"{', '.join(names)}"
            )
        return [labels[name] for name in names]
    flat = keras.tree.flatten(labels)
    if len(flat) != len(model.outputs):
        raise ValueError(
            f"labels for {len(flat)} outputs, but the model has {len(model.outputs)}"
        )
    return list(flat)


def as_outputs(model: Any, values: list[Any]) -> Any:
    """One value for each output, in the structure of the model's outputs."""
    if len(values) == 1:
        return values[0]
    return keras.tree.pack_sequence_as(model.output, values)


def random_targets(model: Any, suits: Callable[[list[Target]], bool]) -> list[Target]:
    """The labels of each output that a compiled model takes.

    They follow from Keras' own losses; else they are the first that `suits`. Raises ValueError if
    none do.
    """
    outputs = model.outputs
    losses = losses_of(model._compile_loss)
    are_known = all(
        isinstance(loss, str) or is_keras_own(function_of(loss)) for loss in losses
    )
    if (
        is_keras_own(type(model).train_step)
        and are_known
        and len(losses) == len(outputs)
    ):
        return [
            _by_loss(loss, tensor) for loss, tensor in zip(losses, outputs, strict=True)
        ]
    candidates = [
        list(map(labels_for, outputs)) for labels_for in (_like_it, _usual, _classes)
    ]
    for targets in candidates:
        if suits(targets):
            return targets
    raise ValueError(
        "its outputs do not show which labels its train_step, loss and metrics take, "
        "and random labels do not fit"
    )


def _by_loss(loss: Any, tensor: Any) -> Target:
    name = loss
    if not isinstance(loss, str):
        name = getattr(loss, "name", None) or loss.__name__
    if "sparse" in name.lower():
        return _classes(tensor)
    if "binary" in name.lower():
        return Target(_shape(tensor), 2)
    return Target(_shape(tensor), 0)


def _shape(values: Any) -> Shape:
    """The shape of one sample."""
    return tuple(values.shape[1:])


def _like_it(tensor: Any) -> Target:
    return Target(_shape(tensor), 0)


def _classes(tensor: Any) -> Target:
    return Target(_shape(tensor)[:-1], int(tensor.shape[-1] or 2))


def _usual(tensor: Any) -> Target:
    """The labels that usually belong to an output."""
    shape = _shape(tensor)
    activation = _activation(tensor)
    if None in shape:
        raise ValueError(
            f"output {tensor.name} has the shape {tuple(tensor.shape)}: only the batch "
            "dimension may be open"
        )
    if not tf.as_dtype(tensor.dtype).is_floating:
        raise ValueError(
            f"output {tensor.name} is {tensor.dtype}: a loss needs real numbers"
        )
    if activation == "softmax" and shape and (shape[-1] or 0) > 1:
        return _classes(tensor)
    if activation == "sigmoid":
        return Target(shape, 2)
    return Target(shape, 0)


def _loss_for(tensor: Any, label_shape: Shape) -> Any:
    """The loss for an output and its labels of that shape.

    Labels that lack the output's last dimension are class numbers.
    """
    shape = _shape(tensor)
    activation = _activation(tensor)
    fits = _equal_on_all(label_shape, shape)
    if activation == "softmax" and fits:
        return keras.losses.CategoricalCrossentropy()
    if shape and (shape[-1] or 0) > 1 and _equal_on_all(label_shape, shape[:-1]):
        return keras.losses.SparseCategoricalCrossentropy(
            from_logits=activation != "softmax"
        )
    if not fits:
        raise ValueError(
            f"labels of shape {label_shape} per sample for the output {tensor.name}, "
            f"whose shape is {shape}"
        )
    if activation == "sigmoid":
        return keras.losses.BinaryCrossentropy()
    return keras.losses.MeanSquaredError()


def classes_of(model: Any, labels: Any) -> Iterator[tuple[str, Any, int]]:
    """For each output whose labels are class numbers: its name, labels and how many classes it has.

    Nothing if the loss ignores a class, or takes none; ours does for a model without a loss.
    """
    loss = getattr(model, "loss", None)
    if loss is not None:
        name = loss
        if not isinstance(loss, str):
            name = getattr(loss, "__name__", type(loss).__name__)
        if "sparse" not in name.lower() or ignores_class(loss):
            return
    try:
        ordered = in_order(model, labels)
    except ValueError:
        # It is told when the model is compiled for them, or built with them.
        return
    for tensor, label in zip(model.outputs, ordered, strict=True):
        shape = _shape(tensor)
        label_shape = _shape(label)
        classes = tensor.shape[-1] or 0
        if (
            classes > 1
            and not _equal_on_all(label_shape, shape)
            and _equal_on_all(label_shape, shape[:-1])
        ):
            yield tensor.name, label, classes


def _equal_on_all(one: Shape, other: Shape) -> bool:
    """Whether Keras makes two shapes equal: it adds or removes a last dimension of 1."""
    return _match(one, other) or _match(one, (*other, 1)) or _match((*one, 1), other)


def _match(one: Shape, other: Shape) -> bool:
    """Whether two shapes are equal; None matches any size."""
    if len(one) != len(other):
        return False
    pairs = zip(one, other, strict=True)
    return all(
        size == other_size or None in (size, other_size) for size, other_size in pairs
    )


def _activation(tensor: Any) -> str:
    """The name of the activation behind an output, of its layer or as a layer of its own."""
    layer = tensor._keras_history.operation
    if isinstance(layer, keras.layers.Softmax):
        return "softmax"
    return getattr(getattr(layer, "activation", None), "__name__", "")
