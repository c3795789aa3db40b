"""Compares weights after five steps at 70/30 with those of one device.

Also compares two equal trainings with each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from scripts.benches.gpu_steps.place import Figure, Place
from tests.support.as_worker import show
from tests.training.cases import SAMPLES, Case, alone, beside, compared, fit, started
from tests.training.models import compiled

_OPTIMIZERS = ("sgd", "adam")


def figures(place: Place) -> Iterator[Figure]:
    """The differences in float32, with TensorFlow's kernels as they are, deterministic or not."""
    devices = place.devices(2)
    show(devices)
    import tensorflow as tf

    from gpubalance.settings.batch_split import BatchSplit
    from gpubalance.settings.device import JointProfile
    from gpubalance.training.split import Split

    tf.config.experimental.enable_tensor_float_32_execution(False)
    split = Split.of(devices, BatchSplit((70, 30)), JointProfile())
    split.scope()  # both devices are set up before one is used alone
    for optimizer in _OPTIMIZERS[:1] if place.rehearsed else _OPTIMIZERS:
        case = Case(partial(classifier, optimizer), _images, {"epochs": 1})
        one = alone(case, SAMPLES, classifier(optimizer))
        model = started(case, split.scope(), one)
        value = {
            "split": beside(case, model, split.fit, one).weights,
            "alone": compared(case, nullcontext(), fit, one).weights,
            "both": compared(
                case, split.scope(), split.fit, replace(one, model=model)
            ).weights,
        }
        told = f"{optimizer}: 70/30 differs from one device by {value['split']:.1e}; "
        told += (
            f"one device from itself by {value['alone']:.1e}, 70/30 from itself by "
            f"{value['both']:.1e}"
        )
        yield Figure(optimizer, value, told)


def classifier(optimizer: str = "adam") -> Any:
    """A small classifier that is traced in a second.

    It has a convolution, for which GPUs have kernels.
    """
    import keras

    shape = keras.Input((28, 28, 1))
    convolution = keras.layers.Conv2D(8, 3, 2, activation="relu")
    layers = [
        shape,
        convolution,
        keras.layers.Flatten(),
        keras.layers.Dense(10, activation="softmax"),
    ]
    # Keras would turn XLA on for a single GPU only, and with it other kernels.
    return compiled(layers, optimizer=optimizer, jit_compile=False)


def _images(_: int) -> tuple[Any, ...]:
    random = np.random.default_rng(3)
    return random.random((5 * SAMPLES, 28, 28, 1), np.float32), random.integers(
        0, 10, 5 * SAMPLES
    )
