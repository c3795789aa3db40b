"""What callbacks see at the end of a batch, and that only those who look wait for the devices."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.support.late import keras
from tests.training.cases import in_split
from tests.training.models import classifier
from tests.training.samples import numbers

X, Y = numbers(120)


def make() -> Any:
    """A model of a split, with what it begins with."""
    _, model = in_split(classifier("adam"), batches=[40, 20])
    return model, model.get_weights()


made = pytest.fixture(scope="module", name="made")(make)


def trained(made: Any, **options: Any) -> Any:
    """The history of a fit of two global batches an epoch."""
    model, start = made
    model.set_weights(start)
    return model.fit(X, Y, shuffle=False, **{"verbose": 0, **options})


def test_a_users_callback_gets_a_dict_of_floats_after_each_batch(made: Any) -> None:
    seen: list[str] = []

    class Writes(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            assert type(logs) is dict
            seen.append(json.dumps({"batch": batch, **logs}))

    history = trained(made, callbacks=[Writes()]).history
    assert [json.loads(line)["batch"] for line in seen] == [0, 1]
    assert json.loads(seen[-1])["loss"] == history["loss"][-1]


def test_keras_own_callback_stops_at_a_loss_that_is_no_number() -> None:
    """It stops at that batch; the optimizer keeps NaN, so nobody else trains this model."""
    weights = np.array([1.0] * 60 + [np.nan] * 60)
    stops = [keras.callbacks.TerminateOnNaN()]
    history = trained(make(), callbacks=stops, sample_weight=weights, epochs=5)
    assert len(history.epoch) == 1


def test_the_bar_shows_numbers(made: Any, capsys: pytest.CaptureFixture[str]) -> None:
    history = trained(made, verbose=1).history
    lines = capsys.readouterr().out.splitlines()
    first, *_, last = (line for line in lines if "loss" in line)
    assert "1/2" in first
    assert f"loss: {history['loss'][0]:.4f}" in last


def test_logs_that_nobody_looks_at_are_not_read() -> None:
    """Keras' ModelCheckpoint and TensorBoard are given logs, and as a rule only hand them on."""
    from gpubalance.training.called_function import LogsReadLate

    reads: list[str] = []

    class Counted:
        def __float__(self) -> float:
            reads.append("loss")
            return 1.5

    logs = LogsReadLate({"loss": Counted()})
    assert logs or None  # as Keras asks
    assert reads == []
    assert [logs["loss"], *logs.values()] == [1.5, 1.5]
    assert reads == ["loss"]
