"""Models with steps of their own, as `--model` and `--data` name them.

Their names are `tests.training.steps:model_3` and `:data_3`, for example.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.support.late import keras, layers, ops, tf
from tests.training.models import compiled, dense, two_in_two_out
from tests.training.samples import numbers, of_two


def stepping(kind: str, layers: Callable[[], list[Any]] = dense) -> Callable[[], Any]:
    """Makes a classifier of these layers with a `train_step` of its own.

    The step does more, or less, than one pass over its samples.
    """

    def make() -> Any:
        class Stepping(keras.Sequential):
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


def augmented() -> Any:
    noise = [layers.GaussianNoise(0.1), layers.Dropout(0.2)]
    return compiled([keras.Input((6,)), *noise, *dense()[1:]], optimizer="adam")


MODELS: dict[str, Any] = {
    "augmentation": (augmented, numbers),
    "gradient penalty": (stepping("gradient penalty"), numbers),
    "two inputs and outputs": (two_in_two_out, of_two),
}


for number, (make, data) in enumerate(MODELS.values()):
    globals().update({f"model_{number}": make, f"data_{number}": partial(data, 200)})
