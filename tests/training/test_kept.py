"""What lives on when a model or a split is no longer held: neither of them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.late import keras
from tests.training.cases import simulated
from tests.training.models import compiled
from tests.training.samples import numbers

X, Y = numbers(240)


def alive(references: Sequence[Any]) -> int:
    """How many of them are, after what a script does between two models."""
    keras.backend.clear_session()
    gc.collect()
    return sum(reference() is not None for reference in references)


def trained(split: Any) -> Any:
    """A model that was trained, stamped and asked with the split."""
    with split.scope():
        layers = [keras.Input((6,)), keras.layers.Dense(3, "softmax")]
        model = compiled(layers, optimizer="adam")
    monitor = split.monitor(every=1)
    model.fit(X[:200], Y[:200], verbose=0, callbacks=[monitor])
    model.predict(X[:100], verbose=0)
    return model


def test_of_models_that_were_trained_at_most_the_last_is_alive() -> None:
    split = simulated((70, 30))
    models = [weakref.ref(trained(split)) for _ in range(3)]
    assert alive(models) <= 1


@pytest.mark.full
def test_of_splits_of_the_same_devices_at_most_the_last_is_alive() -> None:
    splits = []
    for _ in range(3):
        split = simulated((70, 30))
        trained(split)
        splits += [weakref.ref(split), weakref.ref(split.replicas)]
        del split
    assert alive(splits) <= 2


@pytest.mark.full
def test_a_model_lets_go_of_splits_that_trained_it() -> None:
    first = simulated((70, 30))
    model = trained(first)
    split = simulated((60, 40))
    split.fit(model, X[:100], Y[:100], verbose=0)
    reference = weakref.ref(split)
    del split
    assert alive([reference]) == 0


@pytest.mark.full
def test_models_that_train_in_turns_are_each_traced_once() -> None:
    split = simulated((70, 30))
    tracings = []

    class Counting(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            tracings.append(self.name)
            return x

    last = keras.layers.Dense
    with split.scope():
        bodies = [[keras.Input((6,)), Counting(), last(3, "softmax")] for _ in range(3)]
        models = list(map(compiled, bodies))
    for _ in range(2):
        tracings.clear()
        for model in models:
            split.fit(model, X, Y, verbose=0)
    assert tracings == []
