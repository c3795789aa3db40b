"""Keras' MNIST convnet over unlike devices, with images made up.

    .venv/bin/python scripts/example.py [PROFILE.toml]

Without a profile it trains on the simulated pair of configs/quick-pair.toml, with a split by hand.
What finds it, and says whether `dataset` keeps up, is, on GPUs without --simulate:

    gpubalance balance --model scripts/example.py:build --data scripts/example.py:dataset \\
        --simulate PROFILE.toml

or, in this script, `plan = gpubalance.balance(build, dataset, simulate=PROFILE)`, of which
`gpubalance.load_plan(plan, simulate=PROFILE)` makes the split.
"""

import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import gpubalance

PROFILE = (
    sys.argv[1]
    if len(sys.argv) > 1
    else str(Path(__file__).parents[1] / "configs" / "quick-pair.toml")
)


def build():
    model = keras.Sequential(
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
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def digits(count, seed):
    random = np.random.default_rng(seed)
    labels = random.integers(0, 10, count)
    # Each digit has a bright row of its own, so that there is something to learn.
    images = random.integers(0, 128, (count, 28, 28, 1), np.uint8)
    images[np.arange(count), 2 * labels + 3] += 127
    return tf.data.Dataset.from_tensor_slices((images, labels))


def scaled(image, label):
    return tf.cast(image, tf.float32) / 255, label


def dataset(count=1200, seed=0):
    data = (
        digits(count, seed)
        .shuffle(count)
        .map(scaled, num_parallel_calls=tf.data.AUTOTUNE)
    )
    return data.batch(120).prefetch(tf.data.AUTOTUNE)


# What names `build` or `dataset` imports this file: nothing below runs then.
if __name__ == "__main__":
    split = gpubalance.Split([0, 1], [72, 48], simulate=PROFILE)
    with split.scope():
        model = build()
    monitor = split.monitor(every=5)
    split.fit(
        model,
        dataset(),
        epochs=3,
        validation_data=dataset(200, seed=1),
        verbose=2,
        callbacks=[monitor],
    )

    for device, compute_s, wait_s in zip(
        split.devices,
        monitor.epochs[-1].compute_s,
        monitor.epochs[-1].wait_s,
        strict=True,
    ):
        print(
            f"{device.label} {device.name}: compute {compute_s * 1e3:.1f} ms, wait "
            f"{wait_s * 1e3:.1f} ms"
        )
