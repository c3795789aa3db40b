"""Models with steps of their own, as `--model` and `--data` name them: `tests.training.steps:model_3`, `:data_3`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.late import keras, ops, tf
from tests.training.cases import CASES, classifier, compiled, dense, numbers


def stepping(kind: str, layers: Callable[[], list[Any]] = dense) -> Callable[[], Any]:
    """Makes a classifier of these layers whose `train_step` does more, or less, than one pass over its samples."""

    def make() -> Any:
        class Stepping(keras.Sequential):  # type: ignore[misc]
            def loss_of(self, x: Any, y: Any) -> Any:
                if kind == "four views":
                    x, y = ops.concatenate([x, x + 0.1, x - 0.1, 2 * x]), ops.concatenate([y] * 4)
                if kind == "gradient penalty":
                    with tf.GradientTape() as inner:
                        inner.watch(x)
                        p = self(x, training=True)
                        first = p[:, :1]
                    penalty = ops.mean(ops.sum(inner.gradient(first, x) ** 2, axis=1))
                    return self.compute_loss(x, y, p) + penalty
                p = self(x, training=True)
                loss = self.compute_loss(x, y, p)
                return loss + ops.mean((self.teacher(x) - p) ** 2) if kind == "distillation" else loss

            def train_step(self, data: Any) -> Any:
                with tf.GradientTape() as tape:
                    loss = self.loss_of(*data)
                weights = self.trainable_variables[-2:] if kind == "last layer" else self.trainable_variables
                self.optimizer.apply(tape.gradient(loss, weights), weights)
                return {}

        model = Stepping(layers())
        model.teacher = keras.Sequential(layers())
        model.teacher.trainable = False
        model.compile("adam", "sparse_categorical_crossentropy")
        return model

    return make


def subclassed() -> Any:
    class Subclassed(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = keras.layers.Dense(8, "relu"), keras.layers.Dense(3, "softmax")

        def call(self, x: Any) -> Any:
            return self.last(self.first(x))

    return compiled(Subclassed(), optimizer="adam")


def augmented() -> Any:
    noise = [keras.layers.GaussianNoise(0.1), keras.layers.Dropout(0.2)]
    return compiled([keras.Input((6,)), *noise, *dense()[1:]], optimizer="adam")


def perceptual() -> Any:
    eye = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "tanh")])
    return compiled(dense(), lambda y, p: keras.ops.mean((eye(y) - eye(p)) ** 2, axis=-1), "adam")


OWN: dict[str, Any] = {
    **{kind: (stepping(kind), numbers) for kind in ("distillation", "gradient penalty", "four views", "last layer")},
    "subclassed": (subclassed, numbers),
    "augmentation": (augmented, numbers),
    "jit_compile": (classifier(compiled={"jit_compile": True}), numbers),
    "a perceptual loss": (perceptual, CASES["metrics of many kinds"].data),
}
NAMES = (
    *("plain", "AdamW, clipped, EMA", "L2", "activity regulariser", "synchronised batch norm", "sample_weight"),
    *("two inputs and outputs", "masked sentences", "compute_loss of one's own", "train_step of one's own"),
    *("metrics of many kinds", "state and losses of one's own layer", "autoencoder without a call"),
    *("steps_per_execution 4", "train_step of Keras' guide", "train_step that is a function"),
)
MODELS = {**{name: (CASES[name].make, CASES[name].data) for name in NAMES}, **OWN}


def __getattr__(name: str) -> Any:
    what, _, number = name.partition("_")
    if what not in ("model", "data") or not number.isdigit():
        raise AttributeError(name)
    make, data = list(MODELS.values())[int(number)]
    return make if what == "model" else lambda: data(200)
