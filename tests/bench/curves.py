"""The loss in each epoch of public models that dropout, augmentation and batch normalisation make random.

On one device, on one device with another seed, and over two devices with an even and an uneven split.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from tests.training.cases import simulated

_SEEDS = (0, 1)


def main() -> Iterator[str]:
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    for name, (make, data, batches) in {
        "Keras' MNIST convnet": (_convnet, _digits(1440), (72, 48)),
        "MobileNetV2 with augmentation": (_mobile_net, _pictures(192), (16, 8)),
    }.items():
        even = (sum(batches) // 2,) * 2
        curves = {
            f"{batches[0]}/{batches[1]}": _over_two(make, data, batches),
            f"{even[0]}/{even[1]}": _over_two(make, data, even),
            **{f"one device, seed {seed}": _on_one(make, data, sum(batches), seed) for seed in _SEEDS},
        }
        losses = "; ".join(f"{how}: {' '.join(f'{loss:.3f}' for loss in curve)}" for how, curve in curves.items())
        yield f"{name}, loss after each epoch. {losses}"


def _over_two(make: Callable[[], Any], data: Any, batches: tuple[int, int]) -> list[float]:
    split = simulated(batches)
    return _losses(make, split.scope(), lambda model, **options: split.fit(model, *data, **options), _SEEDS[0])


def _on_one(make: Callable[[], Any], data: Any, batch: int, seed: int) -> list[float]:
    return _losses(make, nullcontext(), lambda model, **options: model.fit(*data, batch_size=batch, **options), seed)


def _losses(
    make: Callable[[], Any], scope: AbstractContextManager[Any], fit: Callable[..., Any], seed: int
) -> list[float]:
    import keras

    keras.utils.set_random_seed(seed)
    with scope:
        model = make()
    losses: list[float] = fit(model, epochs=5, verbose=0).history["loss"]
    return losses


def _digits(count: int) -> tuple[Any, Any]:
    """Images of MNIST's shape, and labels; each digit has its own bright row."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 10, count)
    images = random.random((count, 28, 28, 1)).astype(np.float32) / 2
    images[np.arange(count), 2 * labels + 3] += 0.5
    return images, labels


def _pictures(count: int) -> tuple[Any, Any]:
    """Images of 64×64×3, and labels, in three kinds, each with its own colour."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, count)
    images = random.random((count, 64, 64, 3)).astype(np.float32) / 2
    images[np.arange(count), :, :, labels] += 0.3
    return images, labels


def _convnet() -> Any:
    """The model of keras.io/examples/vision/mnist_convnet."""
    import keras
    from keras import layers

    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, kernel_size=(3, 3), activation="relu"),
            layers.MaxPooling2D(pool_size=(2, 2)),
            layers.Conv2D(64, kernel_size=(3, 3), activation="relu"),
            layers.MaxPooling2D(pool_size=(2, 2)),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def _mobile_net() -> Any:
    import keras
    from keras import layers

    model = keras.Sequential(
        [
            keras.Input((64, 64, 3)),
            layers.RandomFlip("horizontal"),
            layers.RandomTranslation(0.1, 0.1),
            keras.applications.MobileNetV2((64, 64, 3), alpha=0.35, include_top=False, weights=None, pooling="avg"),
            layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model
