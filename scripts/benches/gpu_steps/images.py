"""Times `split.fit` at an even split interleaved with Keras' `fit`, on images.

Each step copies its images to the devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from scripts.benches.gpu_steps.arithmetic import compared
from scripts.benches.gpu_steps.place import Figure, Place
from tests.support.as_worker import show

_SHARE = 256
_REHEARSED_SHARE = 4
_SIZE, _REHEARSED_SIZE = 224, 32  # the sides of an image: 300 MB a step


def figures(place: Place) -> Iterator[Figure]:
    """A ratio for each pair of windows.

    Keras runs under MirroredStrategy with the all-reduce that TensorFlow chooses.
    """
    devices = place.devices(2)
    show(devices)
    from gpubalance.engine.runtime import use_devices
    from gpubalance.settings.batch_split import BatchSplit
    from gpubalance.settings.device import JointProfile
    from gpubalance.training.split import Split
    from scripts.benches.loops import KerasFit, SplitFit

    share, size = (
        (_REHEARSED_SHARE, _REHEARSED_SIZE) if place.rehearsed else (_SHARE, _SIZE)
    )
    make = partial(_net, size)
    data = partial(_images, 2 * share, size)
    names = use_devices(devices)
    ours = SplitFit(
        Split.of(devices, BatchSplit((share, share)), JointProfile()), make, data
    )
    keras_own = KerasFit(2 * share, names, make, data)
    yield compared(
        place, "Keras' `fit` of images", ours.throughput, keras_own.throughput
    )


def _net(size: int) -> Any:
    """A classifier that computes about as long as its images take to come to a large card."""
    import keras
    from keras.layers import Conv2D, Dense, GlobalAveragePooling2D

    sizes = ((64, 7, 4), (128, 3, 1), (128, 3, 2))  # filters, their size, the stride
    body = [Conv2D(*of_layer, activation="relu") for of_layer in sizes]
    return keras.Sequential(
        [
            keras.Input((size, size, 3)),
            *body,
            GlobalAveragePooling2D(),
            Dense(10, "softmax"),
        ]
    )


def _images(count: int, size: int) -> Any:
    import tensorflow as tf

    with tf.device("CPU:0"):
        batch = (
            tf.random.uniform((count, size, size, 3)),
            tf.random.uniform((count, 1), 0, 10, tf.int32),
        )
    return tf.data.Dataset.from_tensors(batch).repeat()
