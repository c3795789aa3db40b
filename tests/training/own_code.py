"""Small models with losses, metrics, layers and steps of one's own, as users write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.late import keras, layers, losses, metrics, ops, tf
from tests.training.models import classifier, compiled, dense, small_sgd


def own_loss(kind: str) -> Callable[[], Any]:
    """Makes a classifier whose loss comes from user code of that `kind`.

    It does not come from Keras' reduction.
    """

    def make() -> Any:
        def mean(y: Any, p: Any) -> Any:
            return ops.mean(losses.sparse_categorical_crossentropy(y, p))

        def divided(y: Any, p: Any) -> Any:
            total = losses.SparseCategoricalCrossentropy(reduction="sum")(y, p)
            return total / ops.cast(ops.shape(p)[0], "float32")

        class Computing(keras.Sequential):
            def compute_loss(self, x: Any, y: Any, y_pred: Any, *rest: Any) -> Any:
                compiled = super().compute_loss(x, y, y_pred, *rest)
                return compiled + 0.1 * ops.mean(y_pred**2)

        class Stepping(keras.Sequential):
            def __init__(self, *layers: Any) -> None:
                super().__init__(*layers)
                sums = map(metrics.Sum, ("steps", "samples"))
                self.trackers = [metrics.Mean(name="own"), *sums]

            def train_step(self, data: Any) -> Any:
                x, y = data
                with tf.GradientTape() as tape:
                    p = self(x, training=True)
                    loss = mean(y, p)
                    weight = 0.1 * ops.sum(self.trainable_weights[0] ** 2)
                grads = tape.gradient(loss, self.trainable_weights)
                self.optimizer.apply(grads, self.trainable_weights)
                count = ops.shape(x)[0]
                for tracker, value in zip(self.trackers, (loss, 1, count), strict=True):
                    tracker.update_state(value)
                own, steps, samples = (tracker.result() for tracker in self.trackers)
                return {
                    **{"loss": own, "steps": steps, "samples": samples},
                    "samples a step": samples / steps,
                    "weight": weight,
                    "weight now": 0.1 * ops.sum(self.trainable_weights[0] ** 2),
                    "now": loss,
                    "now and more": loss + 0.1 * ops.mean(p, axis=0)[0],
                    "right": ops.sum(ops.cast(p[:, 0] > 0.4, "int32")),
                    "total": ops.sum(p),
                    "of": count,
                    "mean of a sum": ops.sum(2 * p[:, 0] / ops.cast(count, "float32")),
                }

        kinds = {"compute_loss": Computing, "train_step": Stepping}
        chosen = {"function": mean, "function of a sum": divided}
        model = kinds.get(kind, keras.Sequential)(dense(weights="l2"))
        loss = chosen.get(kind, "sparse_categorical_crossentropy")
        return compiled(model, loss, "adam")

    return make


def many_metrics() -> Any:
    def of_batch(y: Any, p: Any) -> Any:
        return ops.mean(p[:, 0] * y[:, 0])

    def total(y: Any, p: Any) -> Any:
        return ops.sum(p[:, 0] * y[:, 0])

    class OfBatches(metrics.Metric):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.total = self.add_variable((), "zeros", name="total")
            self.batches = self.add_variable((), "zeros", name="batches")
            self.calls = self.add_variable((), "zeros", "int32", name="calls")

        def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> None:
            del sample_weight
            self.total.assign_add(ops.mean(p[:, 0] * y[:, 0]))
            self.batches.assign(1.0 + self.batches)
            self.calls.assign_add(1)

        def result(self) -> Any:
            return self.total / self.batches + ops.cast(self.calls, "float32")

    class InGraph(metrics.MeanSquaredError):
        @tf.function
        def result(self) -> Any:
            return 5 * super().result()

    # Whose states are vectors, a matrix, sums of squares and a number
    kinds = [OfBatches, InGraph, metrics.AUC, metrics.F1Score, metrics.BinaryIoU]
    kinds += [metrics.R2Score]
    every = [of_batch, total, *(one(name=one.__name__) for one in kinds)]
    return compiled(dense(), "categorical_crossentropy", "adam", metrics=every)


def keeping() -> Any:
    """A model with a layer that has its own state and adds losses.

    Another layer has weights that Keras normalises.
    """

    class Keeping(layers.Layer):
        def build(self, shape: Any) -> None:
            of_steps = {"steps": "int32", "float_steps": "float32", "samples": "int32"}
            of_values = {"total": "float32", "average": "float32", "moved": "float32"}
            how = {"initializer": "zeros", "trainable": False}
            for name, dtype in {**of_steps, **of_values}.items():
                setattr(self, name, self.add_weight((), dtype=dtype, name=name, **how))
            self.counts = self.add_weight(shape[-1:], name="counts", **how)

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
    body = [first, layers.SpectralNormalization(layers.Dense(8)), Keeping(), last]
    return compiled(body, optimizer=small_sgd())


def counting(optimizer: Callable[[], Any] = lambda: "sgd") -> Any:
    """A model with a layer that counts steps, in two ways, and samples.

    The layer also has a weight that gets no gradient, and one that it sets before it is trained.
    """

    class Counting(layers.Layer):
        def build(self, _: Any) -> None:
            kinds = {"steps": "int32", "halved": "float32", "samples": "int32"}
            for name, dtype in kinds.items():
                weight = self.add_weight((), "ones", dtype, trainable=False, name=name)
                setattr(self, name, weight)
            self.unused = self.add_weight((3,), name="unused")
            self.decayed = self.add_weight((), "ones", name="decayed")

        def call(self, x: Any) -> Any:
            self.steps.assign_add(1)
            self.halved.assign(0.5 * self.halved)
            self.samples.assign_add(ops.shape(x)[0])
            self.decayed.assign(0.9 * self.decayed)
            return x * self.halved * self.decayed

    first, *rest = dense()
    return compiled([first, Counting(), *rest], optimizer=optimizer())


def mean_of_activities() -> Any:
    """A model with a regularizer of activities that is a mean, where Keras' own are sums."""

    class OfMean(keras.regularizers.Regularizer):
        def __call__(self, x: Any) -> Any:
            return ops.mean(x**2)

    return classifier("sgd", layers={"activity": OfMean()})()


def sampling() -> Any:
    """An autoencoder without a `call`, like Keras' VAE.

    Its `train_step` takes the mean of a sum for each sample.
    """

    class Autoencoder(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            # The first step makes these weights.
            first = keras.initializers.GlorotUniform(seed=1)
            how = {"kernel_initializer": first, "kernel_regularizer": "l2"}
            self.encoder, self.decoder = layers.Dense(3, **how), layers.Dense(6, **how)
            self.total = metrics.Mean(name="total")

        def train_step(self, data: Any) -> Any:
            x = data[0]
            with tf.GradientTape() as tape:
                code = self.encoder(x)
                p = self.decoder(code)
                of_samples = ops.sum((x - p) ** 2, axis=1) + ops.sum(code**2, axis=1)
                loss = ops.mean(of_samples) + self.compute_loss(y=x, y_pred=p)
            grads = tape.gradient(loss, self.trainable_weights)
            self.optimizer.apply(grads, self.trainable_weights)
            self.total.update_state(loss)
            return {"total": self.total.result(), **self.compute_metrics(x, x, p)}

        def test_step(self, data: Any) -> Any:
            x = data[0]
            return self.compute_metrics(x, x, self.decoder(self.encoder(x)))

    def loss(y: Any, p: Any) -> Any:
        return ops.mean(ops.abs(y - p))

    return compiled(Autoencoder(), loss, "adam", metrics=["mae"])


def guided() -> Any:
    """A model that logs dicts in its logs.

    The `train_step` of Keras' guide logs one of all that is compiled.
    """

    class Guided(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                p = self(x, training=True)
                loss = self.compute_loss(y=y, y_pred=p)
                scaled = self.optimizer.scale_loss(loss)
            grads = tape.gradient(scaled, self.trainable_variables)
            self.optimizer.apply(grads, self.trainable_variables)
            for metric in self.metrics:
                metric.update_state(*((loss,) if metric.name == "loss" else (y, p)))
            return {metric.name: metric.result() for metric in self.metrics}

        def compute_metrics(self, *given: Any, **weights: Any) -> Any:
            means = {"own": tf.reduce_mean(given[2][:, 0]), "accuracy": 0.0}
            return {"a": means, "b": super().compute_metrics(*given, **weights)}

    return compiled(Guided(dense()), optimizer="adam", metrics=["accuracy"])


def traced() -> Any:
    """A model whose steps are functions of TensorFlow's.

    One has control flow on tensors, and calls another.
    """

    class Traced(keras.Sequential):
        @tf.function
        def train_step(self, data: Any) -> Any:
            x, y = data
            if tf.reduce_max(x) < 2:
                x = 2 * x
            return self.step_on(x, y)

        @tf.function(autograph=False)
        def step_on(self, *data: Any) -> Any:
            return super().train_step(data)

        @tf.function
        def test_step(self, data: Any) -> Any:
            p = self(data[0])
            accuracy = self.compute_metrics(*data, p)["accuracy"]
            return {"mean": tf.reduce_mean(p[:, 0]), "renamed": accuracy}

    return compiled(Traced(dense()), optimizer="adam", metrics=["accuracy"])
