"""Models of 28×28×1 images by what their gradients are: `--model scripts.benches.models:convnet`."""

from __future__ import annotations

from typing import Any

BATCH = 256  # of each device


def convnet() -> Any:
    """Nearly all its 3 MB of weights are in its last layers, nearly all its compute in its first.

    A step of `BATCH` samples computes for some 0.2 s on one core here, and its gradients take as
    long on 100 Mbit/s.
    """
    from keras.layers import Conv2D, Dense, Flatten, MaxPooling2D

    first = [
        Conv2D(48, 3, activation="relu"),
        Conv2D(64, 3, activation="relu"),
        MaxPooling2D(),
    ]
    second = [Conv2D(64, 3, activation="relu"), MaxPooling2D()]
    return _compiled(
        *first,
        *second,
        Flatten(),
        Dense(384, "relu"),
        Dense(384, "relu"),
        Dense(10, "softmax"),
    )


def few_weights() -> Any:
    """0.2 MB of them, in convolutions."""
    from keras.layers import Conv2D, Dense, GlobalAveragePooling2D, MaxPooling2D

    first = [
        Conv2D(32, 3, activation="relu"),
        MaxPooling2D(),
        Conv2D(64, 3, activation="relu"),
        MaxPooling2D(),
    ]
    return _compiled(
        *first,
        Conv2D(64, 3, activation="relu"),
        GlobalAveragePooling2D(),
        Dense(10, "softmax"),
    )


def _compiled(*layers: Any) -> Any:
    import keras

    model = keras.Sequential([keras.Input((28, 28, 1)), *layers])
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    return model


MODELS = {"convnet": convnet, "few_weights": few_weights}
