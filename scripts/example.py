"""Keras' MNIST convnet over unlike devices, with images made up: .venv/bin/python scripts/example.py [PROFILE.toml]

Without a profile it trains on the simulated pair of configs/quick-pair.toml. On GPUs the split is what
`gpubalance balance -o plan.json` found: `split = gpubalance.load_plan("plan.json")`.
"""

import sys
from pathlib import Path

import keras
import numpy as np
from keras import layers

import gpubalance

PROFILE = sys.argv[1] if len(sys.argv) > 1 else str(Path(__file__).parents[1] / "configs" / "quick-pair.toml")


def build():
    return keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(10, activation="softmax"),
        ]
    )


def digits(count):
    random = np.random.default_rng(0)
    labels = random.integers(0, 10, count)
    # Each digit has a bright row of its own, so that there is something to learn.
    images = random.random((count, 28, 28, 1)).astype("float32") / 2
    images[np.arange(count), 2 * labels + 3] += 0.5
    return images, labels


if __name__ == "__main__":  # `gpubalance balance --model scripts/example.py:build` imports this file
    x_train, y_train = digits(2000)
    split = gpubalance.Split([0, 1], [72, 48], simulate=PROFILE)
    with split.scope():
        model = build()
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    monitor = split.monitor(every=5)
    split.fit(model, x_train, y_train, epochs=3, validation_split=0.1, verbose=2, callbacks=[monitor])

    for device, compute_s, wait_s in zip(
        split.devices, monitor.epochs[-1].compute_s, monitor.epochs[-1].wait_s, strict=True
    ):
        print(f"{device.label} {device.name}: compute {compute_s * 1e3:.1f} ms, wait {wait_s * 1e3:.1f} ms")
