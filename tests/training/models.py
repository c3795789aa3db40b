"""Small models of Keras' own layers and losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.late import keras, layers, losses, optimizers, tf


def dense(activity: Any = None, weights: Any = None, dtype: Any = None) -> list[Any]:
    how = {"kernel_regularizer": weights, "activity_regularizer": activity}
    hidden = layers.Dense(16, "relu", dtype=dtype, **how)
    return [keras.Input((6,)), hidden, layers.Dense(3, "softmax", dtype="float32")]


def compiled(
    model: Any,
    loss: Any = "sparse_categorical_crossentropy",
    optimizer: Any = "sgd",
    **options: Any,
) -> Any:
    """The model, or one of these layers, compiled."""
    model = keras.Sequential(model) if isinstance(model, list) else model
    model.compile(optimizer, loss, **options)
    return model


def classifier(
    optimizer: Any = "sgd",
    loss: Any = "sparse_categorical_crossentropy",
    **options: Any,
) -> Any:
    def make() -> Any:
        given = (made() if callable(made) else made for made in (loss, optimizer))
        how = {"metrics": ["accuracy"], **options.get("compiled", {})}
        return compiled(dense(**options.get("layers", {})), *given, **how)

    return make


def adamw() -> Any:
    averaged = {"use_ema": True, "ema_momentum": 0.9}
    return optimizers.AdamW(0.01, weight_decay=0.02, global_clipnorm=0.05, **averaged)


def cross_entropy(reduction: str | None) -> Callable[[], Any]:
    return lambda: losses.SparseCategoricalCrossentropy(reduction=reduction)


def loss_scaled() -> Any:
    return optimizers.LossScaleOptimizer(optimizers.Adam())


def small_sgd() -> Any:
    return optimizers.SGD(1e-3)


def normalised() -> Any:
    normal = layers.BatchNormalization(synchronized=True)
    body = [keras.Input((6,)), layers.Dense(16), normal, layers.ReLU()]
    return compiled([*body, layers.Dense(3, "softmax")], metrics=["accuracy"])


def normalised_behind_a_loss() -> Any:
    """A model whose first layer adds to the loss before a layer waits for the other devices."""
    first = layers.Dense(16, activity_regularizer="l2")
    body = [keras.Input((6,)), first, layers.BatchNormalization(synchronized=True)]
    return compiled([*body, layers.Dense(3, "softmax")])


def in_float64() -> Any:
    """A model with all kinds of numbers that are summed.

    They are gradients, layers' states and losses' divisors.
    """
    of: dict[str, Any] = {"dtype": "float64"}
    normal = layers.BatchNormalization(synchronized=True, **of)
    body = [layers.Dense(16, **of), normal, layers.Dense(3, "softmax", **of)]
    weighed = {"reduction": "mean_with_sample_weight", **of}
    loss = losses.SparseCategoricalCrossentropy(**weighed)
    return compiled([keras.Input((6,)), *body], loss, "adam")


def subclassed() -> Any:
    class Subclassed(keras.Model):
        def __init__(self, **named: Any) -> None:
            super().__init__(**named)
            self.first, self.last = layers.Dense(8, "relu"), layers.Dense(3, "softmax")

        def call(self, x: Any) -> Any:
            return self.last(self.first(x))

    return compiled(Subclassed(), optimizer="adam")


def two_in_two_out(
    optimizer: Any = "adam",
    *,
    loss: Any = "sparse_categorical_crossentropy",
    width: int = 8,
    **regularised: Any,
) -> Any:
    """A model with metrics with and without sample weights.

    Its first layer may add to the loss too.
    """
    left = keras.Input((6,), name="left")
    right = keras.Input((4,), name="right")
    first = layers.Dense(width, "relu", **regularised)(left)
    both = layers.Concatenate()([first, layers.Dense(4, "tanh")(right)])
    kind = layers.Dense(3, "softmax", name="kind")(layers.Dense(8, "relu")(both))
    outputs = {"kind": kind, "size": layers.Dense(1, name="size")(first)}
    model = keras.Model({"left": left, "right": right}, outputs)
    how: dict[str, Any] = {"loss_weights": {"kind": 1.0, "size": 0.3}}
    how |= {"metrics": {"size": ["mae"]}, "weighted_metrics": {"kind": ["accuracy"]}}
    return compiled(model, {"kind": loss, "size": "mse"}, optimizer, **how)


def masked() -> Any:
    # An LSTM passes the mask on too, but takes ten times as long to trace.
    body = [keras.Input((5,), dtype="int32"), layers.Embedding(20, 8, mask_zero=True)]
    body += [layers.Dense(6, "tanh"), layers.Dense(20, "softmax")]
    return compiled(body, optimizer="adam", weighted_metrics=["accuracy"])


def embedding(optimizer: Any, dtype: Any = None) -> Callable[[], Any]:
    """Makes a model whose gradient has rows, several for a word.

    Optimizers square and clip them one by one.
    """

    def make() -> Any:
        first = layers.Embedding(20, 8, dtype=dtype)
        body = [first, layers.Flatten(), layers.Dense(3, "softmax", dtype="float32")]
        chosen = optimizer() if callable(optimizer) else optimizer
        return compiled([keras.Input((5,), dtype="int32"), *body], optimizer=chosen)

    return make


def positions() -> Any:
    """A model with an embedding of positions beside one of words.

    The positions are those of all samples.
    """

    class Positions(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.of = layers.Embedding(5, 8)

        def call(self, words: Any) -> Any:
            # The length is unknown where batches have other lengths.
            return words + self.of(tf.range(tf.shape(words)[1]))

    first = [keras.Input((5,), dtype="int32"), layers.Embedding(20, 8), Positions()]
    last = [layers.Flatten(), layers.Dense(3, "softmax")]
    return compiled(first + last, optimizer="adam")


def several_optimizers() -> Any:
    """A model with an optimizer made of two, one for each layer."""
    model = keras.Sequential(dense())
    first, rest = optimizers.SGD(0.1), optimizers.Adam()
    kernel = model.layers[0].kernel
    both = optimizers.MultiOptimizer(lambda one: first if one is kernel else rest)
    return compiled(model, optimizer=both)


def ctc() -> Any:
    body = [keras.Input((6, 4)), layers.Dense(8, "tanh"), layers.Dense(5)]
    return compiled(body, losses.CTC(), "adam")
