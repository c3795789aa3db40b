"""What a split can't train as one device does is refused, or trained and told, when it is first met."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

from gpubalance.errors import BadInput
from tests.training.cases import classifier, cross_entropy, dense, numbers, sentences, simulated

X, Y = numbers(240)


def model_with(train_step: Callable[[Any, Any, Any], Any], loss: Any = "sparse_categorical_crossentropy") -> Any:
    """A classifier whose `train_step` gets its gradients, and a function that computes them."""
    import keras
    import tensorflow as tf

    class Own(keras.Sequential):  # type: ignore[misc]
        second = keras.optimizers.Adam()

        def train_step(self, data: Any) -> Any:
            def gradients() -> Any:
                with tf.GradientTape() as tape:
                    loss = self.compute_loss(data[0], data[1], self(data[0], training=True))
                return tape.gradient(loss, self.trainable_variables)

            train_step(self, gradients(), gradients)
            return {}

    model = Own(dense())
    model.compile("sgd", loss)
    return model


def apply(model: Any, grads: Any) -> None:
    model.optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))


def two_optimizers(model: Any, grads: Any, _: Any) -> None:
    apply(model, grads)
    model.second.apply_gradients(zip(grads, model.trainable_variables, strict=True))


def another_optimizer(model: Any, grads: Any, _: Any) -> None:
    model.second.apply_gradients(zip(grads, model.trainable_variables, strict=True))


def no_optimizer(model: Any, grads: Any, _: Any) -> None:
    for variable, grad in zip(model.trainable_variables, grads, strict=True):
        variable.assign_sub(0.1 * grad)


def clipped_weights(model: Any, grads: Any, _: Any) -> None:
    from keras import ops

    apply(model, grads)
    for variable in model.trainable_variables:
        variable.assign(ops.clip(variable, -0.1, 0.1))


def two_passes(model: Any, grads: Any, gradients: Any) -> None:
    """Trains like SAM: applies the gradients at the weights where a first step would lead."""
    for sign in (1, -1):
        for variable, grad in zip(model.trainable_variables, grads, strict=True):
            variable.assign_add(sign * 0.1 * grad)
        if sign == 1:
            second = gradients()
    apply(model, second)


def plain(model: Any, grads: Any, _: Any) -> None:
    apply(model, grads)


def with_loss(name: str) -> Any:
    import keras
    from keras import ops

    def summed(y: Any, p: Any) -> Any:
        return ops.sum(keras.losses.sparse_categorical_crossentropy(y, p)) / 50

    def dice(y: Any, p: Any) -> Any:
        of_class = ops.one_hot(ops.cast(ops.reshape(y, (-1,)), "int32"), 3)
        return 1 - 2 * ops.sum(of_class * p) / (ops.sum(of_class) + ops.sum(p**2))

    return classifier(loss=lambda: {"summed": summed, "dice": dice}[name])()


def total_of_own() -> Any:
    import keras
    from keras import ops

    class Own(keras.Sequential):  # type: ignore[misc]
        def compute_loss(self, x: Any, y: Any, y_pred: Any, *rest: Any, **named: Any) -> Any:
            return super().compute_loss(x, y, y_pred, *rest, **named) + ops.sum(y_pred**2)

    model = Own(dense())
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


def normalised_behind_a_mask() -> Any:
    import keras
    from keras import layers

    model = keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            layers.Embedding(20, 4, mask_zero=True),
            layers.BatchNormalization(synchronized=True),
            layers.LSTM(4),
            layers.Dense(3, "softmax"),
        ]
    )
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


def keeping(kind: str) -> Any:
    import keras
    from keras import layers, ops

    class Keeping(layers.Layer):  # type: ignore[misc]
        def build(self, _: Any) -> None:
            self.kept = self.add_weight((), "zeros", trainable=False, name="kept")

        def call(self, x: Any) -> Any:
            self.kept.assign(self.kept + ops.sum(x) if kind == "sum" else 0.9 * self.kept + 0.1 * ops.sum(x))
            return x

    first, *rest = dense()
    model = keras.Sequential([first, Keeping(name="mine"), *rest])
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


def with_metric(kind: str) -> Any:
    import keras
    from keras import metrics, ops

    class Largest(metrics.Metric):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(name="mine")
            self.largest = self.add_variable((), "zeros", name="largest")

        def update_state(self, _: Any, p: Any, **__: Any) -> None:
            self.largest.assign(ops.maximum(self.largest, ops.max(p)))

        def result(self) -> Any:
            return self.largest

    class Total(metrics.Sum):  # type: ignore[misc]
        def update_state(self, _: Any, p: Any, **__: Any) -> None:
            super().update_state(ops.mean(p[:, 0]))

    model = keras.Sequential(dense())
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=[Largest() if kind == "max" else Total("mine")])
    return model


Told = dict[str, tuple[Callable[[], Any], str]]  # what makes a model, and what is said of it
REFUSED: Told = {
    "two optimizers": (
        lambda: model_with(two_optimizers),
        r"applies gradients with adam\w*, which is not the",
    ),
    "another optimizer": (lambda: model_with(another_optimizer), "which is not the optimizer"),
    "no optimizer": (lambda: model_with(no_optimizer), "changes weights without its optimizer"),
    "weights clipped": (lambda: model_with(clipped_weights), "kernel after it applies gradients"),
    "no reduction": (lambda: model_with(plain, cross_entropy(None)()), "which a loss without a reduction needs"),
    "a sum as one number": (lambda: with_loss("summed"), r"\(summed\) sums over the batch and returns one number"),
    "a mask": (normalised_behind_a_mask, r"gets a mask: there Keras does not synchronise"),
}
TOLD: Told = {
    "two passes": (lambda: model_with(two_passes), "as SAM does"),
    "Dice": (lambda: with_loss("dice"), r"\(dice\) is no mean over samples"),
    "compute_loss": (total_of_own, r"\(compute_loss\) is no mean over samples"),
    "a layer's sum": (lambda: keeping("sum"), "mine updates kept from its samples: the devices' values are summed"),
    "a layer's average": (
        lambda: keeping("average"),
        "kept from its samples: the devices' values are averaged",
    ),
    "a maximum": (lambda: with_metric("max"), "the metric mine sets largest instead of adding to it"),
    "a sum of means": (lambda: with_metric("sum"), "the metric mine adds up one number a batch"),
}


@pytest.mark.parametrize(
    ("name", "micro_batches"), [*((name, None) for name in REFUSED), ("another optimizer", (20, 30))]
)
def test_what_would_be_another_training_is_refused(tensorflow: Any, name: str, micro_batches: Any) -> None:
    make, message = REFUSED[name]
    split = simulated((70, 30), micro_batches)
    with split.scope():
        model = make()
    with pytest.raises(BadInput, match=rf"{message}(.|\n)*→"):
        split.fit(model, sentences(240)[0] if name == "a mask" else X, Y, verbose=0)


@pytest.mark.parametrize("name", TOLD)
def test_what_is_not_exact_is_told(tensorflow: Any, name: str) -> None:
    make, message = TOLD[name]
    split = simulated((70, 30))
    with split.scope():
        model = make()
    with pytest.warns(UserWarning, match=message):
        split.fit(model, X, Y, verbose=0)
    assert int(model.optimizer.iterations.numpy()) == 3  # it trains


def own_loss(kind: str) -> Any:
    """A model that counts calls of its own `compute_loss`, whose loss is a mean, or also random, or of mixed signs."""
    import keras
    from keras import ops

    class Own(keras.Sequential):  # type: ignore[misc]
        def __init__(self, layers: Any) -> None:
            super().__init__(layers)
            self.calls = self.add_weight(name="calls", initializer="zeros", trainable=False)
            self.drop = keras.layers.Dropout(0.5, seed=1)

        def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, *_: Any, **__: Any) -> Any:
            del x, y
            self.calls.assign_add(1.0)
            signs = ops.reshape(1.0 - 2.0 * ops.cast(ops.arange(ops.shape(y_pred)[0]) % 2, y_pred.dtype), (-1, 1))
            losses = {"mean": y_pred, "random": self.drop(y_pred, training=True), "signed": y_pred * 0 + signs}[kind]
            return ops.mean(losses)

    model = Own(dense())
    model.compile("sgd")
    return model


@pytest.mark.parametrize("kind", ["mean", "random", "signed"])
def test_trying_a_loss_leaves_no_trace_and_warns_of_no_mean(tensorflow: Any, kind: str) -> None:
    split = simulated((70, 30))
    with split.scope():
        model = own_loss(kind)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        split.fit(model, X, Y, epochs=2, shuffle=False, verbose=0)
    assert not [one for one in told if "no mean over samples" in str(one.message)]
    assert float(model.calls.value.numpy()) == 2 * 3  # steps, and no trial
