"""Models with steps of their own, which do more, or less, than one pass over their samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.late import keras, ops, tf


def stepping(kind: str, layers: Callable[[], list[Any]]) -> Callable[[], Any]:
    """Makes a classifier of these layers with a `train_step` of its own.

    The step does more, or less, than one pass over its samples.
    """

    def make() -> Any:
        class Stepping(keras.Sequential):  # type: ignore[misc]
            def loss_of(self, x: Any, y: Any) -> Any:
                if kind == "four views":
                    x, y = (
                        ops.concatenate([x, x + 0.1, x - 0.1, 2 * x]),
                        ops.concatenate([y] * 4),
                    )
                if kind == "gradient penalty":
                    with tf.GradientTape() as inner:
                        inner.watch(x)
                        p = self(x, training=True)
                        first = p[:, :1]
                    penalty = ops.mean(ops.sum(inner.gradient(first, x) ** 2, axis=1))
                    return self.compute_loss(x, y, p) + penalty
                p = self(x, training=True)
                loss = self.compute_loss(x, y, p)
                return (
                    loss + ops.mean((self.teacher(x) - p) ** 2)
                    if kind == "distillation"
                    else loss
                )

            def train_step(self, data: Any) -> Any:
                with tf.GradientTape() as tape:
                    loss = self.loss_of(*data)
                weights = (
                    self.trainable_variables[-2:]
                    if kind == "last layer"
                    else self.trainable_variables
                )
                self.optimizer.apply(tape.gradient(loss, weights), weights)
                return {}

        model = Stepping(layers())
        model.teacher = keras.Sequential(layers())
        model.teacher.trainable = False
        model.compile("adam", "sparse_categorical_crossentropy")
        return model

    return make
