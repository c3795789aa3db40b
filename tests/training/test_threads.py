"""Threads of one process that train at the same time, as of a notebook, a tuner or a server.

A split replaces methods of Keras' classes for its steps, and none of them for another thread.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from gpubalance.devices.profile import simulated_devices
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.training.split import Split
from tests.support.cases import campaign, cases, full
from tests.support.late import keras, tf
from tests.training.cases import KERAS_OWN, SAMPLES, apart, in_split, simulated
from tests.training.models import classifier
from tests.training.samples import numbers

X, Y = numbers(3 * SAMPLES)
EPOCHS = 3
NEAR = 1e-6
TIMES = [1, campaign(50)]


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Calls each in a thread of its own, all at once; what they return.

    Python changes threads a hundred times as often as usual.
    """
    barrier = threading.Barrier(len(calls))

    def begin(call: Callable[[], Any]) -> Any:
        barrier.wait()
        return call()

    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(usual_s / 100)
    try:
        with ThreadPoolExecutor(len(calls)) as pool:
            futures = [pool.submit(begin, call) for call in calls]
            return [future.result() for future in futures]
    finally:
        sys.setswitchinterval(usual_s)


def beginning() -> list[Any]:
    keras.utils.set_random_seed(3)
    return list(classifier("adam")().get_weights())


def trained(fit: Callable[..., Any], scope: Any, weights: list[Any]) -> Any:
    """A model made in the scope and trained from these weights by `fit`."""
    with scope:
        model = classifier("adam")()
    model.set_weights(weights)
    fit(model, X, Y, batch_size=SAMPLES, epochs=EPOCHS, shuffle=False, verbose=0)
    return model


def trained_by(split: Split, weights: list[Any]) -> Any:
    return trained(split.fit, split.scope(), weights)


def on_one_device(weights: list[Any]) -> Any:
    return trained(keras.Model.fit, nullcontext(), weights)


def by_mirrored_strategy(weights: list[Any]) -> Any:
    """Keras' own training in equal parts, on devices that no split here has."""
    strategy = tf.distribute.MirroredStrategy(KERAS_OWN)
    return trained(keras.Model.fit, strategy.scope(), weights)


def differences_of_replicas(model: Any) -> list[float]:
    """The largest difference of each weight's two copies."""
    pairs = [weight.value.values for weight in model.trainable_variables]
    return [float(tf.reduce_max(tf.abs(one - other))) for one, other in pairs]


def last_two(batches: tuple[int, int]) -> Split:
    """A split over the last two of four devices."""
    devices, joint = simulated_devices("4")
    return Split.of(devices, BatchSplit((0, 0, *batches)), joint)


@pytest.mark.parametrize("times", TIMES)
def test_two_splits_train_in_two_threads_and_keras_is_left(times: int) -> None:
    weights = beginning()
    expected = on_one_device(weights)
    for _ in range(times):
        splits = [simulated((70, 30)), last_two((20, 80))]
        models = together(*(partial(trained_by, split, weights) for split in splits))
        assert max(apart(model, expected) for model in models) <= NEAR
    plain = by_mirrored_strategy(weights)
    assert max(differences_of_replicas(plain)) == 0.0
    assert apart(plain, expected) <= NEAR


OFTEN = [campaign(50, plain) for plain in (True, False)]


@cases("times, is_plain", full(1, True), *OFTEN)
def test_a_model_trains_as_ever_while_a_split_traces(
    times: int, is_plain: bool
) -> None:
    """A plain model, by Keras alone, or another one of the same split."""
    weights = beginning()
    expected = on_one_device(weights)
    for _ in range(times):
        of_split = partial(trained_by, simulated((70, 30)), weights)
        other = partial(by_mirrored_strategy, weights) if is_plain else of_split
        models = together(of_split, other)
        assert max(apart(model, expected) for model in models) <= NEAR
        if is_plain:
            assert max(differences_of_replicas(models[1])) == 0.0


def test_one_thread_at_a_time_makes_variables() -> None:
    """Two once got each other's initial values."""
    scope = simulated((70, 30)).scope

    def make(value: Callable[[], Any]) -> Any:
        with scope():
            return tf.Variable(value)

    other = threading.Thread(target=make, args=[lambda: 1.0])
    begun_meanwhile: list[bool] = []

    def value() -> float:
        if not begun_meanwhile:
            other.start()
            other.join(timeout=0.2)
            begun_meanwhile.append(not other.is_alive())
        return 2.0

    assert float(make(value).numpy()) == 2.0
    other.join()
    assert begun_meanwhile == [False]


def test_one_thread_at_a_time_calls_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow would mix up the sums of two."""
    from gpubalance.engine.step import functions

    running: list[bool] = []
    at_once: list[int] = []

    def called(*_: object) -> None:
        running.append(True)
        time.sleep(0.1)
        at_once.append(len(running))
        running.pop()

    monkeypatch.setattr(functions, "called_flat", called)
    replicas = simulated((70, 30)).replicas
    own: Any = SimpleNamespace(_replicas=replicas, _micro_batches=lambda _: ())
    split = BatchSplit((70, 30))
    together(*[partial(functions.Functions._called, own, None, (), split)] * 3)
    assert at_once == [1, 1, 1]


@pytest.mark.full
def test_a_server_evaluates_a_model_while_another_thread_trains_it() -> None:
    split, model = in_split()
    before = split.evaluate(model, X, Y, verbose=0)
    model.optimizer.learning_rate = 0.0
    training = threading.Event()
    ended = threading.Event()

    class Pausing(keras.callbacks.Callback):
        """Lets the other thread evaluate between two batches."""

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            assert logs is not None
            training.set()
            assert batch or ended.wait(120)

    def serve() -> Any:
        training.wait(120)
        try:
            return model.evaluate(X, Y, batch_size=50, verbose=0)
        finally:
            ended.set()

    fit = partial(model.fit, X, Y, verbose=0, callbacks=[Pausing()])
    history, served = together(fit, serve)
    assert served == pytest.approx(before, rel=1e-5)
    assert len(history.epoch) == 1
