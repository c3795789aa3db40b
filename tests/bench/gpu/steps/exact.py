"""Compares weights after five steps at 70/30 with one device's, and two equal trainings with each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np

from tests.bench.gpu.net import classifier
from tests.bench.gpu.place import Place, show
from tests.bench.gpu.steps import Figure

_BATCHES = (70, 30)
_STEPS = 5
_OPTIMIZERS = ("sgd", "adam")


def figures(place: Place) -> Iterator[Figure]:
    """The differences in float32, with TensorFlow's kernels as they are, deterministic or not."""
    devices = place.devices(2)
    show(devices)
    import tensorflow as tf

    from gpubalance.settings.device import JointProfile
    from gpubalance.settings.shares import Shares
    from gpubalance.training.split import Split

    tf.config.experimental.enable_tensor_float_32_execution(False)
    split = Split.of(devices, Shares(_BATCHES), JointProfile(), "auto")
    split.scope()  # both devices are set up before one is used alone
    for optimizer in _OPTIMIZERS[:1] if place.rehearsed else _OPTIMIZERS:
        alone = [_weights(optimizer) for _ in range(2)]
        both = [_weights(optimizer, split) for _ in range(2)]
        value = {"split": _apart(both[0], alone[0]), "alone": _apart(*alone), "both": _apart(*both)}
        told = f"{optimizer}: 70/30 differs from one device by {value['split']:.1e}; "
        told += f"one device from itself by {value['alone']:.1e}, 70/30 from itself by {value['both']:.1e}"
        yield Figure(optimizer, value, told)


def _weights(optimizer: str, split: Any = None) -> list[Any]:
    import keras

    random = np.random.default_rng(3)
    count = sum(_BATCHES) * _STEPS
    x, y = random.random((count, 28, 28, 1), np.float32), random.integers(0, 10, count)
    keras.utils.set_random_seed(3)
    with split.scope() if split else nullcontext():
        model = classifier()
        # Keras would turn XLA on for a single GPU only, and with it other kernels.
        model.compile(optimizer, "sparse_categorical_crossentropy", jit_compile=False)
    fit = (lambda *data, **options: split.fit(model, *data, **options)) if split else model.fit
    fit(x, y, batch_size=sum(_BATCHES), shuffle=False, verbose=0)
    return list(model.get_weights())


def _apart(a: list[Any], b: list[Any]) -> float:
    return max(float(np.max(np.abs(one - other))) for one, other in zip(a, b, strict=True))
