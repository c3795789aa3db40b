"""Data that hangs, or takes long for a batch, keeps nobody waiting who no longer needs it."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.cases import cases
from tests.support.late import keras
from tests.support.python import python
from tests.training.cases import in_split
from tests.training.samples import numbers

X, Y = numbers(240)
# Each fit is interrupted before its data gives another batch, which it never does.
HANGING = """
import os, signal, sys, threading, time
import numpy as np
from gpubalance import Split
# A process that is started in the background is born deaf to it.
signal.signal(signal.SIGINT, signal.default_int_handler)
split = Split(batches=[7, 3], simulate=2)
with split.scope():
    import keras
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    model.compile("sgd", "mse")
import tensorflow as tf
BATCH = np.ones((10, 6), "float32"), np.ones((10, 3), "float32")

trained = threading.Event()

def batches():
    for _ in range(6):
        yield BATCH
    hang()

def hang():
    trained.wait()
    time.sleep(0.5)  # Python misses a signal just when it begins to wait
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    threading.Event().wait()

class Parts(keras.utils.PyDataset):
    def __len__(self):
        return 100
    def __getitem__(self, number):
        if number > 5:
            hang()
        return BATCH

def dataset():
    specs = tf.TensorSpec((None, 6)), tf.TensorSpec((None, 3))
    return tf.data.Dataset.from_generator(batches, output_signature=specs)

def end(batch, logs):
    if batch == 5:
        trained.set()

ends = [keras.callbacks.LambdaCallback(on_train_batch_end=end)]
options = {"steps_per_epoch": 100, "validation_data": BATCH, "shuffle": False, "verbose": 0}
for data in map(globals().get, sys.argv[1:]):
    trained.clear()
    try:
        model.fit(data(), callbacks=ends, **options)
    except KeyboardInterrupt:
        print("interrupted", data.__name__, flush=True)
before = model.optimizer.iterations.numpy()
model.fit(*BATCH, verbose=0)
print(model.optimizer.iterations.numpy() - before, flush=True)
if data is not batches:
    os._exit(0)  # TensorFlow waits for its own threads, in which these hang
"""


@pytest.mark.full
@cases("kinds", ("batches",), ("dataset", "Parts"))
def test_a_fit_that_ends_waits_for_no_batch(kinds: tuple[str, ...]) -> None:
    """Nor does the next one, nor the program, for a generator."""
    done = python("-c", HANGING, *kinds, timeout=500)  # for ever
    ended = [f"interrupted {kind}" for kind in kinds]
    assert done.stdout.splitlines() == [*ended, "1"], done.stderr
    assert done.returncode == 0


def test_a_generator_still_asked_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    split, model = in_split()
    asked, released = threading.Event(), threading.Event()
    monkeypatch.setattr("gpubalance.engine.iterators._SILENT_S", 0.1)

    def endless() -> Iterator[Any]:
        for number in range(100):
            if number == 6:
                asked.set()
                released.wait()
            yield X[:100], Y[:100]

    def stop(batch: int, logs: Any) -> None:
        if batch == 4:
            asked.wait()
            model.stop_training = True

    batches, told = endless(), list[str]()
    stops = keras.callbacks.LambdaCallback(on_train_batch_end=stop)
    split.fit(model, batches, steps_per_epoch=50, verbose=0, callbacks=[stops])
    assert not released.is_set()

    def release(message: Any, *_: Any, **__: Any) -> None:
        told.append(str(message))
        released.set()

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = release
        # Two threads that ask it at once would be an error: "already executing".
        history = split.fit(model, batches, steps_per_epoch=3, epochs=4, verbose=0)
    assert len(history.history["loss"]) == 4
    assert [text for text in told if "still producing a batch for an earlier" in text]
