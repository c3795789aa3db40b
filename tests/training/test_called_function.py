"""A script's own `train_function` is called by a split's `fit`, as by Keras' own."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from tests.support.late import keras
from tests.support.told import refused, warned
from tests.training.cases import apart, in_both, in_split, largest
from tests.training.models import classifier, compiled, dense
from tests.training.samples import numbers

X, Y = numbers(200)
OPTIONS = {"batch_size": 100, "shuffle": False, "verbose": 0}


def counting() -> Any:
    """A model of a class that counts the calls of the function that Keras makes."""

    class Counting(keras.Sequential):
        calls = 0
        train_function: Any

        def make_train_function(self, force: bool = False) -> Any:
            if self.train_function is not None and not force:
                return
            super().make_train_function(force)
            made = self.train_function

            def train(batches: Any) -> Any:
                self.calls += 1
                return made(batches)

            self.train_function = train

    return compiled(Counting(dense()), optimizer="adam")


def test_a_models_own_make_train_function_wraps_the_splits() -> None:
    _, model, one_device = in_both(counting)
    for trained in (one_device, model):
        for _ in range(2):
            trained.fit(X, Y, epochs=2, **OPTIONS)
    assert model.calls == one_device.calls == 8
    assert apart(model, one_device) < 1e-6


@pytest.mark.full
def test_a_callbacks_wrapper_is_called_until_the_model_is_compiled() -> None:
    calls = []

    def wrap(trained: Any) -> None:
        made = trained.train_function

        def train(batches: Any) -> Any:
            calls.append(trained)
            return made(batches)

        trained.train_function = train

    split, model, one_device = in_both()
    for trained, scope in ((one_device, nullcontext()), (model, split.scope())):
        begin = keras.callbacks.LambdaCallback(
            on_train_begin=lambda _, trained=trained: wrap(trained)
        )
        trained.fit(X, Y, callbacks=[begin], **OPTIONS)
        trained.fit(X, Y, **OPTIONS)
        with scope:
            trained.compile("adam", "sparse_categorical_crossentropy")
        trained.fit(X, Y, **OPTIONS)
    assert calls.count(model) == calls.count(one_device) == 4
    assert apart(model, one_device) < 1e-6


@pytest.mark.full
def test_making_it_anew_by_force_trains_what_is_trainable_now() -> None:
    def freeze(trained: Any, epoch: int) -> None:
        if epoch == 1:
            trained.layers[0].trainable = False
            trained.make_train_function(force=True)

    _, model, one_device = in_both(classifier("sgd"))
    for trained in (one_device, model):
        freezing = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, _, trained=trained: freeze(trained, epoch)
        )
        trained.fit(X, Y, callbacks=[freezing], epochs=3, **OPTIONS)
    assert apart(model, one_device) < 1e-6


def test_what_calls_no_function_of_the_split_is_refused() -> None:
    _, model = in_split()
    set_another = keras.callbacks.LambdaCallback(
        on_train_begin=lambda _: setattr(model, "train_function", lambda _: {})
    )
    before = model.get_weights()
    with refused("train_function that was set on the model"):
        model.fit(X, Y, callbacks=[set_another], **OPTIONS)
    assert largest(model.get_weights(), before) == 0


def test_what_was_set_before_fit_is_told() -> None:
    _, model = in_split()
    model.train_function = lambda _: {}
    with warned("before fit is not called"):
        model.fit(X, Y, **OPTIONS)
    assert int(model.optimizer.iterations) == 2  # by the split's
