"""Models, losses and data for which a split must give what one device gives, and the comparison of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.shares import Shares
from gpubalance.training.split import Split
from tests.late import keras, layers, metrics, ops, tf

SAMPLES = 100  # in a global batch
EPOCHS = 2


@dataclass(frozen=True)
class Case:
    """A case: `make` builds and compiles a model; `options` are arguments of fit."""

    make: Callable[[], Any]
    data: Callable[[int], tuple[Any, ...]]
    options: dict[str, Any] = field(default_factory=dict)
    within: float = 1e-5


def dense(activity: Any = None, weights: Any = None, dtype: Any = None) -> list[Any]:
    return [
        keras.Input((6,)),
        layers.Dense(16, "relu", kernel_regularizer=weights, activity_regularizer=activity, dtype=dtype),
        layers.Dense(3, "softmax", dtype="float32"),
    ]


def compiled(model: Any, loss: Any = "sparse_categorical_crossentropy", optimizer: Any = "sgd", **options: Any) -> Any:
    """The model, or one of these layers, compiled."""
    model = keras.Sequential(model) if isinstance(model, list) else model
    model.compile(optimizer, loss, **options)
    return model


def classifier(optimizer: Any = "sgd", loss: Any = "sparse_categorical_crossentropy", **options: Any) -> Any:
    def make() -> Any:

        chosen, wanted = (made() if callable(made) else made for made in (optimizer, loss))
        layers = dense(**options.get("layers", {}))
        return compiled(layers, wanted, chosen, metrics=["accuracy"], **options.get("compiled", {}))

    return make


def adamw() -> Any:
    return keras.optimizers.AdamW(0.01, weight_decay=0.02, global_clipnorm=0.05, use_ema=True, ema_momentum=0.9)


def cross_entropy(reduction: str | None) -> Callable[[], Any]:
    def make() -> Any:
        return keras.losses.SparseCategoricalCrossentropy(reduction=reduction)

    return make


def loss_scaled() -> Any:
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())


def small_sgd() -> Any:
    return keras.optimizers.SGD(1e-3)


def normalised() -> Any:
    body = [layers.Dense(16), layers.BatchNormalization(synchronized=True), layers.ReLU()]
    return compiled([keras.Input((6,)), *body, layers.Dense(3, "softmax")], metrics=["accuracy"])


def two_in_two_out() -> Any:
    left, right = keras.Input((6,), name="left"), keras.Input((4,), name="right")
    body = layers.Dense(8, "relu")(layers.Concatenate()([left, right]))
    outputs = {"kind": layers.Dense(3, "softmax", name="kind")(body), "size": layers.Dense(1, name="size")(body)}
    return compiled(
        keras.Model({"left": left, "right": right}, outputs),
        {"kind": "sparse_categorical_crossentropy", "size": "mse"},
        "adam",
        loss_weights={"kind": 1.0, "size": 0.3},
        metrics={"kind": ["accuracy"], "size": ["mae"]},
    )


def masked() -> Any:
    # An LSTM passes the mask on too, but takes ten times as long to trace.
    body = [layers.Embedding(20, 8, mask_zero=True), layers.Dense(6, "tanh"), layers.Dense(20, "softmax")]
    given = keras.Input((5,), dtype="int32")
    return compiled([given, *body], optimizer="adam", weighted_metrics=["accuracy"])


def own_loss(kind: str) -> Callable[[], Any]:
    """Makes a classifier whose loss comes from user code of that `kind`, not from Keras' reduction."""

    def make() -> Any:
        def mean(y: Any, p: Any) -> Any:
            return ops.mean(keras.losses.sparse_categorical_crossentropy(y, p))

        def divided(y: Any, p: Any) -> Any:
            total = keras.losses.SparseCategoricalCrossentropy(reduction="sum")(y, p)
            return total / ops.cast(ops.shape(p)[0], "float32")

        class Computing(keras.Sequential):  # type: ignore[misc]
            def compute_loss(self, x: Any, y: Any, y_pred: Any, *rest: Any, **named: Any) -> Any:
                return super().compute_loss(x, y, y_pred, *rest, **named) + 0.1 * ops.mean(y_pred**2)

        class Stepping(keras.Sequential):  # type: ignore[misc]
            def __init__(self, *layers: Any) -> None:
                super().__init__(*layers)
                self.trackers = [keras.metrics.Mean(name="own"), *map(keras.metrics.Sum, ("steps", "samples"))]

            def train_step(self, data: Any) -> Any:
                x, y = data
                with tf.GradientTape() as tape:
                    p = self(x, training=True)
                    loss = mean(y, p)
                    weight = 0.1 * ops.sum(self.trainable_weights[0] ** 2)
                grads = tape.gradient(loss, self.trainable_weights)
                self.optimizer.apply_gradients(zip(grads, self.trainable_weights, strict=True))
                for tracker, value in zip(self.trackers, (loss, 1, tf.shape(x)[0]), strict=True):
                    tracker.update_state(value)
                own, steps, samples = (tracker.result() for tracker in self.trackers)
                right = ops.cast(p[:, 0] > 0.4, "int32")
                results = {"loss": own, "steps": steps, "samples": samples, "samples a step": samples / steps}
                weights = {"weight": weight, "weight now": 0.1 * ops.sum(self.trainable_weights[0] ** 2)}
                means = {"now": loss, "now and more": loss + 0.1 * ops.mean(p, axis=0)[0]}
                return {
                    **results,
                    **means,
                    **weights,
                    "right": ops.sum(right),
                    "total": ops.sum(p),
                    "mean of a sum": ops.sum(2 * p[:, 0] / ops.cast(ops.shape(x)[0], "float32")),
                    "of": ops.shape(x)[0],
                }

        kinds = {"compute_loss": Computing, "train_step": Stepping}
        losses = {"function": mean, "function of a sum": divided}
        model = kinds.get(kind, keras.Sequential)(dense(weights="l2"))
        return compiled(model, losses.get(kind, "sparse_categorical_crossentropy"), "adam")

    return make


def embedding(optimizer: Any) -> Callable[[], Any]:
    """Makes a model whose gradient has rows, several for a word, which optimizers square and clip one by one."""

    def make() -> Any:
        body = [layers.Embedding(20, 8), layers.Flatten(), layers.Dense(3, "softmax")]
        chosen = optimizer() if callable(optimizer) else optimizer
        return compiled([keras.Input((5,), dtype="int32"), *body], optimizer=chosen)

    return make


def positions() -> Any:
    """A model with an embedding of positions, which are those of all samples, beside one of words."""

    class Positions(layers.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.of = layers.Embedding(5, 8)

        def call(self, words: Any) -> Any:
            return words + self.of(tf.range(tf.shape(words)[1]))  # unknown where batches have other lengths

    kinds = [layers.Embedding(20, 8), Positions(), layers.Flatten(), layers.Dense(3, "softmax")]
    return compiled([keras.Input((5,), dtype="int32"), *kinds], optimizer="adam")


def clipped_sgd() -> Any:
    return keras.optimizers.SGD(0.5, clipnorm=0.01)


def several_optimizers() -> Any:
    """A model with an optimizer made of two, one for each layer."""
    model = keras.Sequential(dense())
    first, rest = keras.optimizers.SGD(0.1), keras.optimizers.Adam()
    kernel = model.layers[0].kernel
    return compiled(model, optimizer=keras.optimizers.MultiOptimizer(lambda one: first if one is kernel else rest))


def ctc() -> Any:
    body = [keras.Input((6, 4)), layers.Dense(8, "tanh"), layers.Dense(5)]
    return compiled(body, keras.losses.CTC(), "adam")


def many_metrics() -> Any:
    def of_batch(y: Any, p: Any) -> Any:
        return ops.mean(p[:, 0] * y[:, 0])

    def total(y: Any, p: Any) -> Any:
        return ops.sum(p[:, 0] * y[:, 0])

    class OfBatches(metrics.Metric):  # type: ignore[misc]
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.total, self.batches = (self.add_variable((), "zeros", name=name) for name in ("total", "batches"))
            self.calls = self.add_variable((), "zeros", "int32", name="calls")

        def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> None:
            del sample_weight
            self.total.assign_add(ops.mean(p[:, 0] * y[:, 0]))
            self.batches.assign(1.0 + self.batches)
            self.calls.assign_add(1)

        def result(self) -> Any:
            return self.total / self.batches + ops.cast(self.calls, "float32")

    kinds = [OfBatches, metrics.AUC, metrics.F1Score, metrics.BinaryIoU, metrics.Precision, metrics.R2Score]
    kinds += [metrics.RootMeanSquaredError, metrics.KLDivergence, metrics.CosineSimilarity]
    named = [one(name=one.__name__) for one in kinds]
    return compiled(dense(), "categorical_crossentropy", "adam", metrics=[of_batch, total, *named])


def keeping() -> Any:
    """A model with a layer that has its own state and adds losses, and one whose weights Keras normalises."""

    class Keeping(layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            of_steps = {"steps": "int32", "float_steps": "float32", "samples": "int32"}
            of_values = {"total": "float32", "average": "float32", "moved": "float32"}
            for name, dtype in {**of_steps, **of_values}.items():
                setattr(self, name, self.add_weight((), "zeros", dtype, trainable=False, name=name))
            self.counts = self.add_weight(shape[-1:], "zeros", trainable=False, name="counts")

        def call(self, x: Any, training: bool = False) -> Any:
            self.add_loss(1e-2 * ops.sum(x**2, axis=-1))
            self.add_loss([1e-1 * ops.mean(x**2)])
            if training:
                self.steps.assign_add(1)
                self.float_steps.assign(self.float_steps + 1.0)
                self.samples.assign_add(ops.shape(x)[0])
                self.total.assign_add(ops.sum(x) / 1000)
                self.counts.assign_add(ops.sum(x, axis=0) / 1000)
                self.average.assign(0.9 * self.average + 0.1 * ops.mean(x))
                self.moved.assign_add(0.1 * (ops.mean(x) - self.moved))
            return x

    first, *_, last = dense()
    return compiled([first, layers.SpectralNormalization(layers.Dense(8)), Keeping(), last], optimizer=small_sgd())


def counting() -> Any:
    """A model with a layer that counts steps, in two ways, and samples."""

    class Counting(layers.Layer):  # type: ignore[misc]
        def build(self, _: Any) -> None:
            for name, dtype in {"steps": "int32", "halved": "float32", "samples": "int32"}.items():
                setattr(self, name, self.add_weight((), "ones", dtype, trainable=False, name=name))

        def call(self, x: Any) -> Any:
            self.steps.assign_add(1)
            self.halved.assign(0.5 * self.halved)
            self.samples.assign_add(ops.shape(x)[0])
            return x * self.halved

    first, *rest = dense()
    return compiled([first, Counting(), *rest])


def with_a_mean_of_activities() -> Any:
    """A model with a regularizer of activities that is a mean, where Keras' own are sums."""

    class OfMean(keras.regularizers.Regularizer):  # type: ignore[misc]
        def __call__(self, x: Any) -> Any:
            return ops.mean(x**2)

    return classifier("sgd", layers={"activity": OfMean()})()


def sampling() -> Any:
    """An autoencoder without a `call`, as Keras' VAE: its `train_step` takes the mean of a sum for each sample."""

    class Autoencoder(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            first = keras.initializers.GlorotUniform(seed=1)  # of weights that are made by the first step
            self.encoder, self.decoder = (
                layers.Dense(units, kernel_initializer=first, kernel_regularizer="l2") for units in (3, 6)
            )
            self.total = keras.metrics.Mean(name="total")

        def train_step(self, data: Any) -> Any:
            x = data[0]
            with tf.GradientTape() as tape:
                code = self.encoder(x)
                p = self.decoder(code)
                of_samples = ops.sum((x - p) ** 2, axis=1) + ops.sum(code**2, axis=1)
                loss = ops.mean(of_samples) + self.compute_loss(y=x, y_pred=p)
            grads = tape.gradient(loss, self.trainable_weights)
            self.optimizer.apply_gradients(zip(grads, self.trainable_weights, strict=True))
            self.total.update_state(loss)
            return {"total": self.total.result(), **self.compute_metrics(x, x, p)}

        def test_step(self, data: Any) -> Any:
            return self.compute_metrics(data[0], data[0], self.decoder(self.encoder(data[0])))

    return compiled(Autoencoder(), lambda y, p: ops.mean(ops.abs(y - p)), "adam", metrics=["mae"])


def guided() -> Any:
    """A model that logs dicts in its logs: in the `train_step` of Keras' guide, one of all that is compiled."""

    class Guided(keras.Sequential):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                p = self(x, training=True)
                loss = self.compute_loss(y=y, y_pred=p)
                scaled = self.optimizer.scale_loss(loss)
            self.optimizer.apply(tape.gradient(scaled, self.trainable_variables), self.trainable_variables)
            for metric in self.metrics:
                metric.update_state(*((loss,) if metric.name == "loss" else (y, p)))
            return {metric.name: metric.result() for metric in self.metrics}

        def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            means = {"own": tf.reduce_mean(y_pred[:, 0]), "accuracy": 0.0}
            return {"a": means, "b": super().compute_metrics(x, y, y_pred, sample_weight)}

    return compiled(Guided(dense()), optimizer="adam", metrics=["accuracy"])


def traced() -> Any:
    """A model whose `train_step` is a function of TensorFlow's, with control flow on tensors, and calls another."""

    class Traced(keras.Sequential):  # type: ignore[misc]
        @tf.function  # type: ignore[untyped-decorator]
        def train_step(self, data: Any) -> Any:
            x, y = data
            if tf.reduce_max(x) < 2:
                x = 2 * x
            return self.step_on(x, y)

        @tf.function(autograph=False)  # type: ignore[untyped-decorator]
        def step_on(self, *data: Any) -> Any:
            return super().train_step(data)

    return compiled(Traced(dense()), optimizer="adam", metrics=["accuracy"])


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
    """Sentences of different lengths, so that devices have different numbers of words."""
    random = np.random.default_rng(8)
    words = random.integers(1, 20, (count, 5))
    words[np.arange(5) >= random.integers(1, 6, count)[:, None]] = 0
    return words, np.roll(words, 1, axis=1)


def words(count: int) -> tuple[Any, ...]:
    random = np.random.default_rng(9)
    return random.integers(0, 20, (count, 5)), random.integers(0, 3, count)


def spoken(count: int) -> tuple[Any, ...]:
    """Samples with labels of different lengths, padded with 0."""
    random = np.random.default_rng(10)
    labels = random.integers(1, 5, (count, 3))
    labels[np.arange(3) >= random.integers(1, 4, count)[:, None]] = 0
    return random.normal(size=(count, 6, 4)).astype(np.float32), labels


def one_hot(count: int) -> tuple[Any, ...]:
    x, y = numbers(count)
    return x, np.eye(3, dtype=np.float32)[y]


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
    "loss function of one's own, of Keras' sum": Case(own_loss("function of a sum"), numbers),
    "reduction none": Case(classifier(small_sgd, cross_entropy(None)), numbers),
    "embedding, Adam": Case(embedding("adam"), words),
    "embedding of positions, Adam": Case(positions, words),
    "embedding, RMSprop": Case(embedding("rmsprop"), words),
    "CTC": Case(ctc, spoken),
    "embedding, clipped": Case(embedding(clipped_sgd), words),
    "embedding, Adagrad": Case(embedding("adagrad"), words),
    "metrics of many kinds": Case(many_metrics, one_hot),
    "state and losses of one's own layer": Case(keeping, numbers),
    "counters of one's own layer": Case(counting, numbers),
    "activity regulariser of one's own, a mean": Case(with_a_mean_of_activities, numbers),
    "autoencoder without a call": Case(sampling, numbers, {"validation_data": numbers(SAMPLES)}),
    "several optimizers in one": Case(several_optimizers, numbers),
    "steps_per_execution 4": Case(classifier("adam", compiled={"steps_per_execution": 4}), numbers),
    "train_step of Keras' guide": Case(guided, numbers, {"validation_data": numbers(SAMPLES)}),
    "train_step that is a function": Case(traced, numbers),
}


def simulated(batches: Sequence[int], micro_batches: Sequence[int] | None = None) -> Split:
    """A split over plain CPU devices of this process."""
    devices = [
        Device(index=i, uuid=f"SIM-{i}", name="CPU", memory_bytes=None, simulated=True) for i in range(len(batches))
    ]
    return Split.of(devices, Shares(tuple(batches), tuple(micro_batches or ())), JointProfile(), "auto")


def in_split(
    make: Any = None, *given: Any, batches: Any = (70, 30), micro_batches: Any = None, **options: Any
) -> tuple[Split, Any]:
    """A split over plain CPU devices, and a model that is made in its scope."""
    split = simulated(batches, micro_batches)
    with split.scope():
        return split, (make or classifier())(*given, **options)


@dataclass(frozen=True)
class Differences:
    """The largest differences between a split's training and one device's; relative for logs above 1."""

    weights: float
    logs: float


def differences(case: Case, split: Split, last: int) -> Differences:
    """The differences after some epochs of two whole global batches and one of `last` samples."""
    return compared(case, split.scope(), split.fit, alone(case, last))


def in_turn(case: Case, split: Split, lasts: Sequence[int]) -> Iterator[Differences]:
    """The differences for one last batch after the other, with the same two models, so that each is traced once."""
    expected = model = None
    for last in lasts:
        expected = alone(case, last, expected and expected.model)
        model = model or started(case, split.scope(), expected)
        yield beside(case, model, split.fit, expected)


@dataclass(frozen=True)
class Alone:
    """One device's training: its model, and each epoch's logs."""

    data: tuple[Any, ...]
    start: list[Any]
    model: Any
    history: dict[str, Sequence[float]]


def alone(case: Case, last: int, model: Any = None) -> Alone:
    """Trains a case on one device, continuing with `model` if given."""
    x, y, sample_weight = data = (*case.data(2 * SAMPLES + last), None)[:3]
    if model is None:
        keras.utils.set_random_seed(3)
        model = case.make()
        model.run_eagerly = True  # the same numbers, without tracing for a few steps
    start = model.get_weights()
    history = model.fit(x, y, sample_weight=sample_weight, batch_size=SAMPLES, **_options(case)).history
    return Alone(data, start, model, history)


def started(case: Case, scope: Any, expected: Alone) -> Any:
    """A model made in `scope`, with the weights that the one device's model began with."""
    with scope:
        model = case.make()
    model.set_weights(expected.start)
    return model


def compared(case: Case, scope: Any, fit: Callable[..., Any], expected: Alone) -> Differences:
    """The differences of another way to train: `fit` gets a model made in `scope`."""
    return beside(case, started(case, scope, expected), fit, expected)


def beside(case: Case, model: Any, fit: Callable[..., Any], expected: Alone) -> Differences:
    """The differences between what `fit` makes of a model and one device's training."""
    x, y, sample_weight = expected.data
    found = fit(model, x, y, sample_weight=sample_weight, **_options(case)).history
    assert set(found) == set(expected.history)
    pairs = zip(model.get_weights(), expected.model.get_weights(), strict=True)
    return Differences(
        weights=max(float(abs(a - b).max()) for a, b in pairs),
        logs=max(_apart(found[name], expected.history[name]) for name in found),
    )


def _options(case: Case) -> dict[str, Any]:
    return {"epochs": EPOCHS, "shuffle": False, "verbose": 0, **case.options}


def _apart(found: Sequence[Any], expected: Sequence[Any]) -> float:
    """The largest difference of each epoch's number, or numbers, as some metrics have one for each class."""
    return float(np.max(np.abs(np.subtract(found, expected)) / np.maximum(1.0, np.abs(expected))))
