"""Models, losses and data for which a split must give what one device gives; and both, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.shares import Shares
from gpubalance.training.split import Split

SAMPLES = 100  # of a global batch
EPOCHS = 3


@dataclass(frozen=True)
class Case:
    """`make` builds and compiles a model; `options` are of fit."""

    make: Callable[[], Any]
    data: Callable[[int], tuple[Any, ...]]
    options: dict[str, Any] = field(default_factory=dict)
    within: float = 1e-5


def dense(activity: Any = None, weights: Any = None, dtype: Any = None) -> list[Any]:
    from keras import Input, layers

    return [
        Input((6,)),
        layers.Dense(16, "relu", kernel_regularizer=weights, activity_regularizer=activity, dtype=dtype),
        layers.Dense(3, "softmax", dtype="float32"),
    ]


def classifier(optimizer: Any = "sgd", loss: Any = "sparse_categorical_crossentropy", **options: Any) -> Any:
    def make() -> Any:
        import keras

        model = keras.Sequential(dense(**options.get("layers", {})))
        chosen, wanted = (made() if callable(made) else made for made in (optimizer, loss))
        model.compile(chosen, wanted, metrics=["accuracy"], **options.get("compiled", {}))
        return model

    return make


def adamw() -> Any:
    import keras

    return keras.optimizers.AdamW(0.01, weight_decay=0.02, global_clipnorm=0.05, use_ema=True, ema_momentum=0.9)


def cross_entropy(reduction: str) -> Callable[[], Any]:
    def make() -> Any:
        import keras

        return keras.losses.SparseCategoricalCrossentropy(reduction=reduction)

    return make


def loss_scaled() -> Any:
    import keras

    return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())


def small_sgd() -> Any:
    import keras

    return keras.optimizers.SGD(1e-3)


def normalised() -> Any:
    import keras
    from keras import layers

    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(16),
            layers.BatchNormalization(synchronized=True),
            layers.ReLU(),
            layers.Dense(3, "softmax"),
        ]
    )
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def two_in_two_out() -> Any:
    import keras
    from keras import layers

    left, right = keras.Input((6,), name="left"), keras.Input((4,), name="right")
    body = layers.Dense(8, "relu")(layers.Concatenate()([left, right]))
    outputs = {"kind": layers.Dense(3, "softmax", name="kind")(body), "size": layers.Dense(1, name="size")(body)}
    model = keras.Model({"left": left, "right": right}, outputs)
    model.compile(
        "adam",
        {"kind": "sparse_categorical_crossentropy", "size": "mse"},
        loss_weights={"kind": 1.0, "size": 0.3},
        metrics={"kind": ["accuracy"], "size": ["mae"]},
    )
    return model


def masked() -> Any:
    import keras
    from keras import layers

    model = keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            layers.Embedding(20, 8, mask_zero=True),
            layers.LSTM(6, return_sequences=True),
            layers.Dense(20, "softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
    return model


def own_loss(kind: str) -> Callable[[], Any]:
    """A classifier whose loss does not come from Keras' reduction, but from its `kind` of the user's own code."""

    def make() -> Any:
        import keras
        import tensorflow as tf
        from keras import ops

        def mean(y: Any, p: Any) -> Any:
            return ops.mean(keras.losses.sparse_categorical_crossentropy(y, p))

        class Computing(keras.Sequential):  # type: ignore[misc]
            def compute_loss(self, x: Any, y: Any, y_pred: Any, *rest: Any, **named: Any) -> Any:
                return super().compute_loss(x, y, y_pred, *rest, **named) + 0.1 * ops.mean(y_pred**2)

        class Stepping(keras.Sequential):  # type: ignore[misc]
            def __init__(self, *layers: Any) -> None:
                super().__init__(*layers)
                self.tracker = keras.metrics.Mean(name="own")

            def train_step(self, data: Any) -> Any:
                x, y = data
                with tf.GradientTape() as tape:
                    loss = mean(y, self(x, training=True))
                grads = tape.gradient(loss, self.trainable_weights)
                self.optimizer.apply_gradients(zip(grads, self.trainable_weights, strict=True))
                self.tracker.update_state(loss)
                return {"own": self.tracker.result(), "now": loss}

        kinds = {"compute_loss": Computing, "train_step": Stepping, "function": keras.Sequential}
        model = kinds[kind](dense())
        model.compile("adam", mean if kind == "function" else "sparse_categorical_crossentropy")
        return model

    return make


def numbers(count: int) -> tuple[Any, ...]:
    random = np.random.default_rng(5)
    return random.random((count, 6), np.float32), random.integers(0, 3, count)


def weighted(count: int) -> tuple[Any, ...]:
    return *numbers(count), np.random.default_rng(6).random(count).astype(np.float32)


def of_two(count: int) -> tuple[Any, ...]:
    random = np.random.default_rng(7)
    x = {"left": random.random((count, 6), np.float32), "right": random.random((count, 4), np.float32)}
    return x, {"kind": random.integers(0, 3, count), "size": random.random((count, 1), np.float32)}


def sentences(count: int) -> tuple[Any, ...]:
    """Of unlike lengths, so that each device has another number of words."""
    random = np.random.default_rng(8)
    words = random.integers(1, 20, (count, 5))
    words[np.arange(5) >= random.integers(1, 6, count)[:, None]] = 0
    return words, np.roll(words, 1, axis=1)


L2 = {"layers": {"weights": "l2"}}
CASES: dict[str, Case] = {
    "plain": Case(classifier(), numbers),
    "Adam": Case(classifier("adam"), numbers),
    "AdamW, clipped, EMA": Case(classifier(adamw), numbers),
    "L2": Case(classifier("adam", **L2), numbers),
    "activity regulariser": Case(classifier(layers={"activity": "l2"}), numbers),
    "synchronised batch norm": Case(normalised, numbers),
    "sample_weight": Case(classifier("adam"), weighted),
    "class_weight": Case(classifier(), numbers, {"class_weight": {0: 0.5, 1: 2.0, 2: 1.0}}),
    "reduction sum": Case(classifier(small_sgd, cross_entropy("sum")), numbers),
    "reduction mean": Case(classifier("sgd", cross_entropy("mean")), weighted),
    "reduction mean_with_sample_weight": Case(classifier("adam", cross_entropy("mean_with_sample_weight")), weighted),
    "two inputs and outputs": Case(two_in_two_out, of_two),
    "masked sentences": Case(masked, sentences),
    "mixed_bfloat16": Case(classifier("adam", layers={"dtype": "mixed_bfloat16"}), numbers, within=2e-2),
    "mixed_float16": Case(classifier(loss_scaled, layers={"dtype": "mixed_float16"}), numbers, within=2e-3),
    "compute_loss of one's own": Case(own_loss("compute_loss"), numbers),
    "train_step of one's own": Case(own_loss("train_step"), numbers),
    "loss function of one's own": Case(own_loss("function"), numbers),
    "loss function of one's own, class_weight": Case(
        own_loss("function"), numbers, {"class_weight": {0: 1.0, 1: 1.0, 2: 1.0}}
    ),
    "steps_per_execution 4": Case(classifier("adam", compiled={"steps_per_execution": 4}), numbers),
}


def simulated(batches: Sequence[int], micro_batches: Sequence[int] | None = None) -> Split:
    """A split over plain CPU devices of this process."""
    devices = [
        Device(index=i, uuid=f"SIM-{i}", name="CPU", memory_bytes=None, simulated=True) for i in range(len(batches))
    ]
    return Split._of(devices, Shares(tuple(batches), tuple(micro_batches or ())), JointProfile(), "auto")


@dataclass(frozen=True)
class Differences:
    """The largest, between a split's training and one device's; of logs above 1 as a part of them."""

    weights: float
    logs: float


def differences(case: Case, split: Split, last: int) -> Differences:
    """After some epochs over two whole global batches and one of `last` samples."""
    return compared(case, split.scope(), split.fit, last)


def compared(case: Case, scope: Any, fit: Callable[..., Any], last: int) -> Differences:
    """The same for another way to train: `fit` takes a model that was made in `scope`."""
    import keras

    data = case.data(2 * SAMPLES + last)
    options = {"epochs": EPOCHS, "shuffle": False, "verbose": 0, **case.options}
    keras.utils.set_random_seed(3)
    alone = case.make()
    start = alone.get_weights()
    x, y, sample_weight = (*data, None)[:3]
    expected = alone.fit(x, y, sample_weight=sample_weight, batch_size=SAMPLES, **options).history
    with scope:
        model = case.make()
    model.set_weights(start)
    found = fit(model, x, y, sample_weight=sample_weight, **options).history
    assert set(found) == set(expected)
    return Differences(
        weights=max(float(abs(a - b).max()) for a, b in zip(model.get_weights(), alone.get_weights(), strict=True)),
        logs=max(_apart(found[name], expected[name]) for name in expected),
    )


def _apart(found: Sequence[float], expected: Sequence[float]) -> float:
    return max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(found, expected, strict=True))
