"""Models with steps of their own, as `--model` and `--data` name them.

Their names are `tests.training.steps:model_3` and `:data_3`, for example.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.support.late import keras, layers, ops, tf
from tests.training.models import compiled, dense, two_in_two_out
from tests.training.samples import numbers, of_two


def penalised() -> Any:
    """A classifier whose loss has the gradient of its first output."""

    class Stepping(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    p = self(x, training=True)
                    first = p[:, :1]
                penalty = ops.mean(ops.sum(inner.gradient(first, x) ** 2, axis=1))
                loss = self.compute_loss(x, y, p) + penalty
            weights = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, weights), weights)
            return {}

    return compiled(Stepping(dense()), optimizer="adam")


def augmented() -> Any:
    noise = [layers.GaussianNoise(0.1), layers.Dropout(0.2)]
    return compiled([keras.Input((6,)), *noise, *dense()[1:]], optimizer="adam")


MODELS: dict[str, Any] = {
    "augmentation": (augmented, numbers),
    "gradient penalty": (penalised, numbers),
    "two inputs and outputs": (two_in_two_out, of_two),
}


for number, (make, data) in enumerate(MODELS.values()):
    globals().update({f"model_{number}": make, f"data_{number}": partial(data, 200)})
