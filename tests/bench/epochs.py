"""How long an epoch of an everyday pipeline takes beyond its steps and those of its validation, at most."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from gpubalance.training.split import Split

EPOCHS = 30
_BATCH, _STEPS = 96, 4
# The longer an iterator has lived, the longer tf.data's autotuning thread sleeps.
_STEP_S = 0.4


class Beyond(keras.callbacks.Callback):  # type: ignore[misc]
    """Makes each training step take a while, and adds up what is between steps."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._ended_s = time.perf_counter()

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        self.seconds.append(0.0)

    def on_train_batch_begin(self, *_: Any, **__: Any) -> None:
        self.seconds[-1] += time.perf_counter() - self._ended_s

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        time.sleep(_STEP_S)
        self._ended_s = time.perf_counter()

    on_test_batch_begin = on_train_batch_begin

    def on_test_batch_end(self, *_: Any, **__: Any) -> None:
        self._ended_s = time.perf_counter()

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        self.seconds[-1] += time.perf_counter() - self._ended_s
        self._ended_s = time.perf_counter()


def _trained(scope: Any) -> Sequence[float]:
    with scope:
        model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(4)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    beyond = Beyond()
    model.fit(_pipeline(_STEPS), validation_data=_pipeline(2), epochs=EPOCHS, verbose=0, callbacks=[beyond])
    return beyond.seconds[1:]  # the first one traces


def _pipeline(steps: int) -> Any:
    import tensorflow as tf

    random, samples = np.random.default_rng(0), steps * _BATCH
    data = tf.data.Dataset.from_tensor_slices((random.random((samples, 16), "float32"), random.integers(0, 4, samples)))
    data = data.shuffle(samples).map(lambda x, y: (2 * x, y), num_parallel_calls=tf.data.AUTOTUNE)
    return data.batch(_BATCH // 2)  # regrouped for the split


def _keras_own() -> Any:
    import tensorflow as tf

    devices = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope()


if __name__ == "__main__":
    is_ours = sys.argv[1] == "split"
    print(max(_trained(Split(batches=(58, 38), simulate=2).scope() if is_ours else _keras_own())))
