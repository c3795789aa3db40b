"""Nobody waits for the end of a pipeline: a thread of its own drops the iterator, and ends with the program."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np
import pytest

from tests.training.cases import classifier, numbers, simulated

ROOT = Path(__file__).parents[2]
X, Y = numbers(240)
DATA = """
import numpy, tensorflow as tf
def own():
    images, labels = numpy.zeros((60, 6), "float32"), numpy.zeros(60, "int64")
    return tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(60).batch(10)
"""
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
class Interrupts(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.epoch = epoch + 1
    def on_train_batch_end(self, batch, logs=None):
        if getattr(self, "epoch", 0) == 2:
            raise KeyboardInterrupt
data = tf.data.Dataset.from_tensor_slices((np.zeros((100, 6), "float32"), np.zeros((100, 3), "float32")))
data = data.map(lambda x, y: (x, y), num_parallel_calls=tf.data.AUTOTUNE).batch(4)
model.fit(data, validation_data=data, epochs=3, verbose=0, callbacks=[Interrupts()])
"""


@pytest.fixture
def dropping(tensorflow: Any, monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread | None]:
    """An entry for each iterator that TensorFlow makes from now on, None until it is dropped, then the thread."""
    from tensorflow.python.data.ops.iterator_ops import OwnedIterator

    found: list[threading.Thread | None] = []
    make = OwnedIterator._create_iterator

    def made(iterator: Any, dataset: Any) -> None:
        make(iterator, dataset)
        iterator.told = np.zeros(1)  # unlike the iterator unknown to the garbage collector, which would tell too early
        found.append(None)
        finalize(iterator.told, dropped, len(found) - 1)

    def dropped(number: int) -> None:
        found[number] = threading.current_thread()

    monkeypatch.setattr(OwnedIterator, "_create_iterator", made)
    return found


def everyday(tensorflow: Any, batch: int) -> Any:
    data = tensorflow.data.Dataset.from_tensor_slices((X, Y)).shuffle(240)
    return data.map(lambda x, y: (x, y), num_parallel_calls=tensorflow.data.AUTOTUNE).batch(batch)


def test_the_main_thread_drops_no_iterator(
    tensorflow: Any, dropping: list[threading.Thread | None], tmp_path: Path
) -> None:
    from gpubalance.engine.user_data import UserData

    split = simulated((70, 30))
    with split.scope():
        model = classifier()()
    for batch in (100, 48):  # the second is regrouped, and how many batches it gives is known at its end only
        data = everyday(tensorflow, batch)
        split.fit(model, data, validation_data=data, epochs=3, verbose=0)
        split.evaluate(model, data, verbose=0)
        split.predict(model, data, verbose=0)
    split.fit(model, X, Y, validation_split=0.5, epochs=2, verbose=0)
    (tmp_path / "mine.py").write_text(DATA)
    assert len(list(islice(UserData(f"{tmp_path}/mine.py:own", model).stream(30), 4))) == 4
    gc.collect()  # Keras leaves the last one of a call in a circle
    end = time.monotonic() + 60
    while None in dropping and time.monotonic() < end:
        time.sleep(0.01)
    assert len(dropping) > 20
    assert not {None, threading.main_thread()} & {*dropping}


def test_a_generator_that_validates_is_asked_by_one_thread_at_a_time(tensorflow: Any) -> None:
    split = simulated((70, 30))
    with split.scope():
        model = classifier()()

    def endless() -> Iterator[Any]:
        while True:
            time.sleep(0.002)
            yield X[:100], Y[:100]

    split.fit(model, X, Y, validation_data=endless(), validation_steps=1, epochs=20, verbose=0)


def test_an_interrupted_training_ends_at_once_and_says_only_that() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGINT
    assert done.stderr.rstrip().splitlines()[-1] == "KeyboardInterrupt"
