"""Data that hangs, or takes long for a batch, keeps nobody waiting who no longer needs it."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.late import keras
from tests.training.cases import in_split
from tests.training.samples import numbers

X, Y = numbers(240)


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
