"""Drawn models with batches, and what is true of each one's gradients: the parity check must say so.

A loss is a mean over samples, a sum, none of these, or has no gradient, by how it is made. How far
one that is no mean is from it, and whether a mean has a gradient for these samples, is computed in
float64 by Keras and a tape alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from tests.support.late import keras, layers, losses, ops, tf
from tests.training.cases import has_bfloat16

MEAN, SUM, OTHER, NONE = "a mean", "a sum", "no mean", "no gradient"
PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16")
# What is no mean must be found from this relative difference of gradients on, by precision.
_CLEAR = {"float32": 1e-2, "mixed_float16": 0.1, "mixed_bfloat16": 0.4}
_ROUNDING_64 = 1e-12  # of gradients in float64, which are about 1 in size
_SMALLEST = {"float32": 1e-4, "mixed_float16": 1e-2, "mixed_bfloat16": 1e-2}
_CLIPPED_TO = 1e-3
# The distance of 1 to the next number, and how often samples are rounded by it.
_SPACINGS = {"float32": 2**-23, "mixed_float16": 2**-10, "mixed_bfloat16": 2**-7}
_ROUNDED = 5


def _cross_entropy(y: Any, p: Any) -> Any:
    return -ops.sum(y * ops.log(p + 1e-6), axis=-1)


def _weights(y: Any) -> Any:
    """From 1 to the number of classes."""
    return 1.0 + ops.cast(ops.argmax(y, axis=-1), y.dtype)


def _normal(p: Any) -> Any:
    apart = p - ops.mean(p, axis=-1, keepdims=True)
    return apart / ops.sqrt(ops.mean(apart**2, axis=-1, keepdims=True) + 1e-3)


def _hardest(y: Any, p: Any) -> Any:
    each = _cross_entropy(y, p)
    count = max(1, (each.shape[0] or 0) // 4)
    if each.shape[0] is None:
        count = ops.maximum(1, ops.shape(each)[0] // 4)
    return ops.mean(ops.top_k(each, count)[0])


def _above(y: Any, p: Any) -> Any:
    each = _cross_entropy(y, p)
    return ops.mean(ops.where(each > ops.mean(each), each, 0.0 * each))


def _contrast(y: Any, p: Any) -> Any:
    del y
    alike = 3 * ops.matmul(p, ops.transpose(p))
    return ops.mean(ops.logsumexp(alike, axis=-1) - ops.sum(3 * p * p, axis=-1))


Loss = Callable[[Any, Any], Any]
# By name, for a softmax p: a value for each sample.
_EACH: dict[str, Loss] = {
    "cross-entropy": _cross_entropy,
    "squares": lambda y, p: ops.mean((y - p) ** 2, axis=-1),
    "distance": lambda y, p: ops.mean(ops.abs(y - p), axis=-1),
    "weighed": lambda y, p: _weights(y) * _cross_entropy(y, p),
    "focal": lambda y, p: ops.sum((1 - p) ** 2 * y * -ops.log(p + 1e-6), axis=-1),
    "entropy": lambda _, p: -ops.sum(p * ops.log(p + 1e-6), axis=-1),
    "likelihood": lambda y, p: 1 - ops.sum(y * p, axis=-1),
    "of signs": lambda y, p: ops.sum((2 * y - 1) * p, axis=-1),
}
# A number, which is a mean.
_MEANS: dict[str, Loss] = {
    "mostly cancelling": lambda y, p: (
        ops.mean(p) + 0.01 * ops.mean(_cross_entropy(y, p))
    ),
    "by its size": lambda _, p: ops.sum(p**2) / ops.cast(ops.size(p), p.dtype),
    "root of each": lambda y, p: ops.mean(ops.sqrt(_cross_entropy(y, p) + 0.1)),
}
_OTHERS: dict[str, Loss] = {
    "hardest": _hardest,
    "above their mean": _above,
    "contrast": _contrast,
    "Dice": lambda y, p: 1 - 2 * ops.sum(y * p) / ops.sum(y + p**2),
    "weights by their mean": lambda y, p: ops.mean(
        _weights(y) / ops.mean(_weights(y)) * _cross_entropy(y, p)
    ),
    "root of the mean": lambda y, p: ops.sqrt(ops.mean((y - p) ** 2)),
    "deviation": lambda _, p: ops.sum(ops.std(p, axis=0)),
    "variance": lambda _, p: ops.mean((p - ops.mean(p, axis=0)) ** 2),
    "largest": lambda y, p: ops.max(_cross_entropy(y, p)),
    "logarithm of the sum": lambda y, p: ops.logsumexp(_cross_entropy(y, p)),
    "square of the mean": lambda y, p: ops.mean(_cross_entropy(y, p)) ** 2,
}
_NONES: dict[str, Loss] = {
    "mean of the outputs": lambda _, p: ops.mean(p),
    "sum over classes": lambda _, p: ops.mean(ops.sum(p, axis=-1)),
    "less a third": lambda _, p: ops.mean(3 * p - 1),
    "times 0": lambda _, p: ops.mean(p * 0),
    "logarithm of 1": lambda _, p: ops.mean(ops.log(ops.sum(p, axis=-1))),
    "of their own share": lambda _, p: ops.mean(p / ops.sum(p, -1, keepdims=True)),
    "softmax again": lambda _, p: ops.mean(ops.softmax(5 * p)),
    "normal": lambda _, p: ops.mean(_normal(p)),
    "less their mean": lambda _, p: ops.mean(p - ops.mean(p, -1, keepdims=True)),
}
_OF_KERAS = (
    *("categorical_crossentropy", "mean_squared_error", "mean_absolute_error"),
    *("binary_crossentropy", "categorical_focal_crossentropy", "kl_divergence"),
    *("poisson", "cosine_similarity", "log_cosh", "huber", "squared_hinge"),
)


@dataclass(frozen=True)
class DrawnStep:
    """A model's step on a batch, and what may be said of it.

    `truths` is empty where it is too near to two of them.
    """

    text: str
    model: Any
    batch: tuple[Any, ...]
    truths: tuple[str, ...]


class _Draw:
    """Draws one. Its body is made twice, in its precision and in float64."""

    def __init__(self, seed: int, precision: str) -> None:
        self.random = Random(seed)
        self.seed = seed
        self.precision = precision
        choose = self.random.choice
        self.truth = self.random.choices((MEAN, NONE, OTHER, SUM), (8, 6, 6, 2))[0]
        # Such a loss sees each sample tried.
        counts: tuple[int, ...] = (4, 6, 8, 12, 16)
        if self.truth != OTHER:
            counts = (2, 3, 4, 5, 7, 8, 13, 16, 17, 24, 40)
        self.count = choose(counts)
        self.classes = choose((2, 3, 4, 5, 7, 10))
        kinds = "dense", "images", "words", "steps"
        self.kind = self.random.choices(kinds, (10, 3, 4, 2))[0]
        self.depth = choose((1, 1, 2, 3))
        self.width = choose((4, 8, 13, 24))
        self.activation = choose(("relu", "tanh", "gelu", "linear", "sigmoid"))
        self.normal = choose((None, None, None, "layer", "batch"))
        self.dropout = choose((0.0, 0.0, 0.0, 0.3, 0.5))
        self.zeros = self.random.random() < 0.15
        self.l2 = self.truth == MEAN and self.random.random() < 0.15
        # As a rule the last layers are float32.
        self.is_half_to_the_end = self.random.random() < 0.25
        self.masked = self.random.random() < 0.5
        self.how = choose(("compile", "compute_loss", "train_step"))
        self.centred = self.clipped = False
        self._choose_loss()
        if self.truth == OTHER:
            self.zeros = False  # the losses of all samples would be the same
            if self.normal == "batch":
                self.normal = None  # in float64 it would take the moments of each part
        # A graph of its own in that of the step.
        self.is_function = self.reduced is not None and self.random.random() < 0.15

    def _choose_loss(self) -> None:
        choose = self.random.choice
        self.weighted = False
        self.reduced: Loss | None = None  # gives a number
        self.each: Loss | str | None = None
        if self.truth == OTHER:
            self.name = choose((*_OTHERS, "centred", "clipped"))
            self.centred, self.clipped = self.name == "centred", self.name == "clipped"
            if self.clipped:
                self.how = "train_step"
            self.reduced = _OTHERS.get(self.name, _over(ops.mean, _cross_entropy))
        elif self.truth == NONE:
            self.name = choose(tuple(_NONES))
            self.reduced = _NONES[self.name]
        elif self.truth == SUM:
            self.name = choose(tuple(_EACH))
            self.reduced = _over(ops.sum, _EACH[self.name])
        elif self.random.random() < 0.3:
            self.how = "compile"
            self.name = choose(_OF_KERAS)
            self.each = self.name
            self.weighted = self.random.random() < 0.4
        elif self.random.random() < 0.3:
            kinds = _MEANS
            if self.precision != "float32":  # where 0.01 is rounding
                kinds = {k: v for k, v in _MEANS.items() if k != "mostly cancelling"}
            self.name = choose(tuple(kinds))
            self.reduced = kinds[self.name]
        else:
            self.name = choose(tuple(_EACH))
            self.each = _EACH[self.name]
            self.weighted = self.how == "compile" and self.random.random() < 0.3
            if self.how != "compile" or not self.weighted:
                self.reduced = _over(ops.mean, _EACH[self.name])

    def text(self) -> str:
        parts = [
            f"seed {self.seed}, {self.precision}: {self.truth}, {self.name} in {self.how}",
            f"{self.count} samples of {self.kind}, {self.classes} classes",
            f"{self.depth} layers of {self.width} ({self.activation})",
        ]
        names = "normal", "dropout", "zeros", "l2", "masked", "weighted", "is_function"
        drawn = [(name, getattr(self, name)) for name in names]
        return ", ".join(parts + [f"{name} {value}" for name, value in drawn if value])

    def data(self) -> tuple[Any, Any, Any]:
        random = np.random.default_rng(self.seed)
        shapes = {"dense": (6,), "images": (6, 6, 2), "words": (5,), "steps": (4, 3)}
        shape = shapes[self.kind]
        x = random.normal(size=(self.count, *shape)).astype("float32")
        if self.kind == "words":
            x = random.integers(0, 12, (self.count, *shape))
            x[:, 0] = random.integers(1, 12, self.count)
        labels = random.integers(0, self.classes, self.count)
        labels[: self.classes] = np.arange(self.classes)[: self.count]
        weights = random.uniform(0.2, 3, self.count).astype("float32")
        return x, np.eye(self.classes, dtype="float32")[labels], weights

    def layers(self, dtype: str, *, drops: bool) -> list[Any]:
        x, _, _ = self.data()
        body = [keras.Input(x.shape[1:], dtype=x.dtype.name)]
        keras.utils.set_random_seed(self.seed)
        how: dict[str, Any] = {"dtype": dtype}
        if self.kind == "words":
            body.append(layers.Embedding(12, 4, mask_zero=self.masked, **how))
            body.append(layers.GlobalAveragePooling1D(**how))
        elif self.kind == "images":
            body.append(layers.Conv2D(self.width, 3, activation=self.activation, **how))
            body.append(layers.GlobalAveragePooling2D(**how))
        elif self.kind == "steps":
            body.append(layers.SimpleRNN(self.width, unroll=self.masked, **how))
        for place in range(self.depth):
            body.append(layers.Dense(self.width, **how))
            if self.normal == "layer":
                body.append(layers.LayerNormalization(**how))
            elif self.normal == "batch":
                # That of a batch is exact too.
                body.append(layers.BatchNormalization(synchronized=True, **how))
            body.append(layers.Activation(self.activation, **how))
            if self.centred and place == 0:
                body.append(_centring(**how))
        if self.dropout and drops:
            body.append(layers.Dropout(self.dropout, **how))
        elif self.dropout:  # the parity check keeps all
            body.append(layers.Rescaling(1 / (1 - self.dropout), **how))
        if dtype != "float64" and not self.is_half_to_the_end:
            how["dtype"] = "float32"
        first = "zeros" if self.zeros else "glorot_uniform"
        decay = {"kernel_regularizer": "l2" if self.l2 else None}
        body.append(
            layers.Dense(self.classes, kernel_initializer=first, **decay, **how)
        )
        return [*body, layers.Softmax(**how)]

    def model(self) -> Any:
        body = self.layers(self.precision, drops=True)
        loss = self.reduced or self.each
        if self.is_function:
            loss = _as_function(loss)
        if self.how == "compile":
            model = keras.Sequential(body)
            model.compile("sgd", loss, jit_compile=False)
            return model
        model = _owning(self.how, loss, self.clipped)(body)
        model.compile("sgd", None, jit_compile=False)
        return model


def _as_function(loss: Any) -> Any:
    def of_graph(y: Any, p: Any) -> Any:  # a lambda's name is none for a scope
        return loss(y, p)

    return tf.function(of_graph)


def _over(reduce: Callable[[Any], Any], each: Loss) -> Loss:
    return lambda y, p: reduce(each(y, p))


def _centring(**how: Any) -> Any:
    class Centring(layers.Layer):
        def call(self, x: Any) -> Any:
            return x - ops.mean(x, axis=0)

    return Centring(**how)


def _with_added(loss: Any, model: Any) -> Any:
    """The loss with those that layers add, which may have another precision."""
    return loss + sum(ops.cast(added, loss.dtype) for added in model.losses)


def _owning(how: str, loss: Any, clipped: bool) -> Any:
    """A model with the loss in its `compute_loss` or its `train_step`."""

    class Owning(keras.Sequential):
        if how == "compute_loss":

            def compute_loss(self, _: Any, y: Any, p: Any, *__: Any, **___: Any) -> Any:
                return _with_added(loss(ops.cast(y, p.dtype), p), self)

        else:

            def train_step(self, data: Any) -> Any:
                x, y = data[:2]
                with tf.GradientTape() as tape:
                    p = self(x, training=True)
                    value = _with_added(loss(ops.cast(y, p.dtype), p), self)
                    value = self.optimizer.scale_loss(value)
                grads = tape.gradient(value, self.trainable_variables)
                if clipped:
                    grads, _ = tf.clip_by_global_norm(grads, _CLIPPED_TO)
                self.optimizer.apply(grads, self.trainable_variables)
                return {}

    return Owning


def precision_of(seed: int) -> str:
    """The precision of the step with this number: they take turns, if this environment has them."""
    precisions: tuple[str, ...] = PRECISIONS
    if not has_bfloat16():
        precisions = PRECISIONS[:2]
    return precisions[seed % len(precisions)]


def drawn(seed: int, precision: str) -> DrawnStep:
    """The model and the batch with this number, in a precision of PRECISIONS."""
    draw = _Draw(seed, precision)
    model = draw.model()
    x, y, weights = draw.data()
    batch = (x, y, weights) if draw.weighted else (x, y)
    return DrawnStep(draw.text(), model, batch, _truths(draw, model.get_weights()))


def _truths(draw: _Draw, weights: list[Any]) -> tuple[str, ...]:
    """What is true of the gradients with these weights, as computed in float64."""
    if draw.truth == NONE:
        return (NONE,)
    model = keras.Sequential(draw.layers("float64", drops=False))
    model.set_weights(weights)  # its own initial ones are others
    whole = _gradient(draw, model, slice(None))
    size = np.linalg.norm(whole)
    if draw.truth == OTHER:
        # Where rounding decides which samples a loss chooses, any of them may be right.
        rounded = (_is_clearly_other(draw, model, seed) for seed in range(_ROUNDED))
        if not all(rounded):
            return ()
        # This precision may round them away, and then nobody knows.
        return (OTHER,) if size > _SMALLEST[draw.precision] else (OTHER, NONE)
    if size < _ROUNDING_64:
        # A loss that is a sum may be called one.
        return (NONE,) if draw.truth == MEAN else ()
    return (draw.truth,) if size > _SMALLEST[draw.precision] else ()


def _is_clearly_other(draw: _Draw, model: Any, seed: int) -> bool:
    """Whether the gradients of two parts are far from making the whole's.

    The samples are rounded at random for each seed but 0.
    """
    first = max(1, min(16, draw.count) // 4)
    weight = first / draw.count
    slices = slice(None), slice(first), slice(first, None)
    whole, *parts = (_gradient(draw, model, part, seed) for part in slices)
    made = weight * parts[0] + (1 - weight) * parts[1]
    largest = max(map(np.linalg.norm, (whole, *parts)))
    apart = np.linalg.norm(made - whole)
    return bool(apart > _CLEAR[draw.precision] * largest)


def _gradient(draw: _Draw, model: Any, samples: slice, seed: int = 0) -> Any:
    """The gradient of the loss of these samples, in float64; rounded if there is a seed."""
    x, y, weights = draw.data()
    if seed and x.dtype.kind == "f":
        moved = np.random.default_rng(seed).normal(size=x.shape)
        x = x * (1 + _SPACINGS[draw.precision] * moved)
    x, y, weights = (values[samples] for values in (x, y, weights))
    with tf.GradientTape() as tape:
        p = model(x)
        if draw.reduced is not None:
            loss = draw.reduced(y.astype("float64"), p)
        else:
            each: Any = draw.each
            if isinstance(each, str):
                each = losses.get(each)
            values = each(y.astype("float64"), p)
            loss = ops.mean(values * weights if draw.weighted else values)
        loss += sum(model.losses)
    grads = tape.gradient(loss, model.trainable_variables)
    if draw.clipped:
        grads, _ = tf.clip_by_global_norm(grads, _CLIPPED_TO)
    flat = [np.ravel(tf.convert_to_tensor(one)) for one in grads if one is not None]
    return np.concatenate(flat)


def verdict(step: DrawnStep) -> tuple[str, tuple[str, ...]]:
    """What the parity check finds of such a step, and what it says."""
    from gpubalance.engine.step import built, parity

    batch = tuple(map(tf.constant, step.batch))
    built.build(step.model, tf.distribute.get_strategy(), batch, trains=True)
    found = parity.check(step.model, batch, "CPU:0")
    if found.refused:
        said = found.refused.message
        return SUM if "sum" in said else said, (said,)
    said = " ".join(found.warned)
    if not said:
        return MEAN, ()
    if "not a mean over samples" in said:
        return OTHER, found.warned
    return NONE if "for the samples tried" in said else said, found.warned


def judged(seed: int) -> tuple[str, str]:
    """What became of the step with this number, and what was said."""
    step = drawn(seed, precision_of(seed))
    if not step.truths:
        return "undecided", step.text
    found, said = verdict(step)
    text = f"{step.text}: truly {step.truths[0]}; {' '.join(said) or 'nothing said'}"
    if found in step.truths:
        return "right", text
    # What is told at all is not missed.
    is_missed = found == MEAN or (found == NONE and MEAN not in step.truths)
    return "miss" if is_missed else "false alarm", text
