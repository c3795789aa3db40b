"""A small model and its data, as somebody tries gpubalance with on a laptop."""

from __future__ import annotations

from typing import Any

import numpy as np


def build() -> Any:
    """A convnet for pictures of 32 x 32."""
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(10, activation="softmax"),
        ],
        name="cnn",
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def dataset() -> Any:
    """2000 pictures of noise, and their labels."""
    random = np.random.default_rng(0)
    return random.random((2000, 32, 32, 3), "float32"), random.integers(0, 10, 2000)
