"""Small models with a `train_step` of one's own that a split can't train as one device does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.late import keras, layers, losses, metrics, ops, optimizers, tf
from tests.training.models import compiled, dense


def model_with(
    train_step: Callable[[Any, Any, Any], Any],
    loss: Any = "sparse_categorical_crossentropy",
    weights: Any = None,
) -> Any:
    """A classifier whose `train_step` gets its gradients, and a function that computes them."""

    class Own(keras.Sequential):
        second = optimizers.Adam()
        scaled = optimizers.LossScaleOptimizer(optimizers.Adam())
        counted = metrics.Mean(name="counted")

        def train_step(self, data: Any) -> Any:
            def gradients() -> Any:
                with tf.GradientTape() as tape:
                    p = self(data[0], training=True)
                    loss = self.compute_loss(data[0], data[1], p)
                return tape.gradient(loss, self.trainable_variables)

            self.now = data[0]
            return train_step(self, gradients(), gradients) or {}

    return compiled(Own(dense(weights=weights)), loss)


def apply(model: Any, grads: Any) -> None:
    model.optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))


def two_optimizers(model: Any, grads: Any, _: Any) -> None:
    apply(model, grads)
    model.second.apply_gradients(zip(grads, model.trainable_variables, strict=True))


def another_optimizer(model: Any, grads: Any, _: Any) -> None:
    model.scaled.apply_gradients(zip(grads, model.trainable_variables, strict=True))


def no_optimizer(model: Any, grads: Any, _: Any) -> None:
    for variable, grad in zip(model.trainable_variables, grads, strict=True):
        variable.assign_sub(0.1 * grad)


def by_tensorflow(model: Any, grads: Any, _: Any) -> None:
    for variable, grad in zip(model.trainable_variables, grads, strict=True):
        variable.value.assign_sub(0.1 * grad)


def clipped_weights(model: Any, grads: Any, _: Any) -> None:
    apply(model, grads)
    for variable in model.trainable_variables:
        variable.assign(ops.clip(variable, -0.1, 0.1))


def skipping(model: Any, grads: Any, _: Any) -> None:
    small = tf.linalg.global_norm(grads) < 0.2
    ops.cond(small, lambda: apply(model, grads), lambda: None)


def rate_by_samples(model: Any, grads: Any, _: Any) -> None:
    model.optimizer.learning_rate.assign(0.1 * tf.linalg.global_norm(grads))
    apply(model, grads)


def rate_before(model: Any, grads: Any, _: Any) -> None:
    model.optimizer.learning_rate.assign(0.9 * model.optimizer.learning_rate)
    apply(model, grads)


def rate_afterwards(model: Any, grads: Any, _: Any) -> None:
    apply(model, grads)
    model.optimizer.learning_rate.assign(0.9 * model.optimizer.learning_rate)


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


def much_logged(model: Any, grads: Any, _: Any) -> Any:
    """Logs what is no mean over samples, and what it reads after it applied the gradients."""
    apply(model, grads)
    output = model(model.now)[:, 0]
    model.counted.update_state(output)
    of_codes = tf.unique(tf.argmax(model.now, axis=1))[0]
    return {
        "norm": tf.linalg.global_norm(grads),
        "spread": tf.math.reduce_variance(model.now[:, 0]),
        "codes": tf.size(of_codes),
        "output": ops.mean(output),
        "counted": model.counted.result(),
    }


def centring() -> Any:
    """A model that keeps a mean of its samples, and a count of its steps, for TensorFlow alone."""

    class Centring(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            self.centre.assign(0.9 * self.centre + 0.1 * ops.mean(data[0], axis=0))
            self.steps.assign_add(1.0)
            return super().train_step(data)

    model = Centring(dense(), name="centring")
    model.centre, model.steps = tf.Variable(tf.zeros(6)), tf.Variable(0.0)
    return compiled(model)


def counting() -> Any:
    """A model that counts its steps in a variable of Keras, and sets one of TensorFlow anew."""

    class Counting(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            self.steps.assign_add(1.0)
            self.flag.assign(1.0)
            return super().train_step(data)

    model = Counting(dense(), name="counting")
    model.steps, model.flag = keras.Variable(0.0, trainable=False), tf.Variable(0.0)
    return compiled(model)


def sampled() -> Any:
    """A model whose loss is of a few classes, drawn for the whole batch."""

    class Sampled(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.body = layers.Dense(4)
            self.kernel = self.add_weight((50, 4), name="of")
            self.bias = self.add_weight((50,), name="of")

        def call(self, x: Any) -> Any:
            return self.body(x)

        def train_step(self, data: Any) -> Any:
            with tf.GradientTape() as tape:
                of_classes = map(tf.convert_to_tensor, (self.kernel, self.bias))
                given = tf.reshape(data[1], (-1, 1)), self(data[0]), 8, 50
                loss = tf.reduce_mean(tf.nn.sampled_softmax_loss(*of_classes, *given))
            apply(self, tape.gradient(loss, self.trainable_variables))
            return {}

    return compiled(Sampled(), None)


def stepping(kind: str) -> Any:
    """A model whose `train_step` has no compiled loss, but one of this kind."""

    class Stepping(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            x, y = data
            weights = tf.cast(y >= 0, "float32")  # of 1 everywhere
            with tf.GradientTape() as tape:
                loss = losses.sparse_categorical_crossentropy(y, self(x, training=True))
                if kind == "average":
                    loss = tf.nn.compute_average_loss(loss)
                if "pairs" in kind:
                    loss = ops.mean((loss[:, None] - loss) ** 2, axis=1)
                if kind == "twelve":
                    loss = ops.mean(ops.reshape(loss[:12], (12,)))
                elif kind == "weights":
                    loss = ops.sum(loss * weights) / (ops.sum(weights) + 1e-7)
                else:
                    loss = ops.sum(loss) if "sum" in kind else ops.mean(loss)
                loss += sum(self.losses)
                if kind != "outside":
                    loss = self.optimizer.scale_loss(loss)
            if kind == "outside":
                loss = self.optimizer.scale_loss(loss)
            grads = tape.gradient(loss, self.trainable_variables)
            if kind == "clipped":
                grads, _ = tf.clip_by_global_norm(grads, 0.01)
            apply(self, grads)
            return {}

    first, hidden, last = dense(weights="l2" if "L2" in kind else None)
    drops = [layers.Dropout(0.5)] * ("random" in kind)
    model = Stepping([first, hidden, *drops, last])
    if kind == "no optimizer":
        # As a GAN's own compile, which sets optimizers for its two models
        model.compiled = True
    else:
        model.compile("sgd")
    return model
