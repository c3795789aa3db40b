"""How far layers over several devices are from one device, model by model; and what memory their order takes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.bench import layers_exact, layers_memory
from tests.engine.pipelines import trained


def main() -> Iterator[str]:
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    layers_memory.devices(3)
    yield from layers_exact.main()
    yield (
        "in float32, as TensorFlow runs them: gradients of a first step in 3 stages, their difference by their norm; "
        "beside one device whose inputs are each the next number"
    )
    for name in ("regularised", "unet", "transformer", "EfficientNetB0", "MobileNetV2", "ResNet50"):
        yield f"{name}: {_beside_itself(layers_exact.maker(name))}"
    yield from layers_memory.main()


def _beside_itself(make: Callable[[], Any]) -> str:
    """How far layers are from one device, and one device from itself."""
    import keras

    found = trained(make, _gradients, micro_batches=3, steps=1, move=True)
    keras.backend.clear_session()
    return f"{_part(found.model, found.twin):.1g}, itself {_part(found.moved, found.twin):.1g}"


def _gradients() -> Any:
    """An optimizer whose update leaves the gradients in the weights' place."""
    import keras
    import tensorflow as tf

    class Gradients(keras.optimizers.Optimizer):  # type: ignore[misc]
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            del learning_rate
            self.assign(variable, tf.convert_to_tensor(gradient))

    return Gradients(1.0)


def _part(one: Any, other: Any) -> float:
    """The norm of the difference of their weights, by that of the weights."""
    pairs = [(a.numpy(), b.numpy()) for a, b in zip(one.trainable_variables, other.trainable_variables, strict=True)]
    return math.hypot(*(np.linalg.norm(a - b) for a, b in pairs)) / math.hypot(*(np.linalg.norm(b) for _, b in pairs))
