"""An iterator that is over disturbs neither the next epoch's nor the end of the program."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.python import python
from tests.training.cases import in_split
from tests.training.samples import numbers

X, Y = numbers(240)
# A step of the third epoch is interrupted, while iterators of the first two may still be dropped.
INTERRUPTED = """
import numpy as np
from gpubalance import Split
split = Split(batches=[7, 3], simulate=2)
with split.scope():
    import keras
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    model.compile("sgd", "mse")
import tensorflow as tf
def interrupt(batch, logs):
    if model.optimizer.iterations.numpy() > 2 * 10:
        raise KeyboardInterrupt
interrupts = keras.callbacks.LambdaCallback(on_train_batch_end=interrupt)
data = tf.data.Dataset.from_tensor_slices((np.zeros((100, 6), "float32"), np.zeros((100, 3), "float32")))
data = data.map(lambda x, y: (x, y), num_parallel_calls=tf.data.AUTOTUNE).batch(4)
model.fit(data, validation_data=data, epochs=3, verbose=0, callbacks=[interrupts])
"""


def test_a_generator_that_validates_is_asked_by_one_thread_at_a_time() -> None:
    split, model = in_split()

    def endless() -> Iterator[Any]:
        while True:
            time.sleep(0.002)
            yield X[:100], Y[:100]

    how = {"validation_data": endless(), "validation_steps": 1}
    trained = split.fit(model, X, Y, epochs=8, verbose=0, **how)
    # Two threads at once would be an error: "already executing".
    assert len(trained.history["val_loss"]) == 8


@pytest.mark.full
def test_an_interrupted_training_ends_at_once_and_says_only_that() -> None:
    done = python("-c", INTERRUPTED)
    assert done.returncode == -signal.SIGINT
    assert done.stderr.rstrip().splitlines()[-1] == "KeyboardInterrupt"
